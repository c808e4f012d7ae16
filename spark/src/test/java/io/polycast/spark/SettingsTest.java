package io.polycast.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.HashMap;
import java.util.Map;
import org.junit.Assume;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

public class SettingsTest {
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  private static Settings of(String... pairs) {
    Map<String, String> all = new HashMap<>();
    for (int at = 0; at < pairs.length; at += 2) {
      all.put(pairs[at], pairs[at + 1]);
    }
    return Settings.of(all);
  }

  @Test
  public void whatIsNotSaidHasGoodValues() {
    Settings settings = of("spark.app.name", "x");
    assertTrue(settings.enabled);
    assertEquals(1 << 20, settings.thresholdBytes);
    assertEquals(20_000, settings.patienceMs);
    assertNull(settings.unsealed);
  }

  @Test
  public void sizesTimesAndSocketsAreRead() {
    Settings settings = of("spark.polycast.threshold", "4MiB", "spark.polycast.patience", "2min",
        "spark.polycast.socket", "/run/agent-{executor}.sock");
    assertEquals(4 << 20, settings.thresholdBytes);
    assertEquals(120_000, settings.patienceMs);
    assertEquals(Paths.get("/run/agent-driver.sock"), settings.socket("driver"));
  }

  @Test
  public void aFolderOfAnotherUserIsNotOurs() throws Exception {
    Path own = folder.getRoot().toPath();
    assertTrue(Settings.isOwn(own));
    assertTrue(Settings.isOwn(Paths.get("/proc")));
    assertFalse(Settings.isOwn(own.resolve("missing")));
    Assume.assumeTrue("only root can give a folder away", Settings.user().equals("0"));
    Files.setAttribute(own, "unix:uid", 65534);
    assertFalse(Settings.isOwn(own));
    Files.setAttribute(own, "unix:uid", 0);
  }

  @Test
  public void aSocketOfAnotherUserIsNotUsedWhereEveryUserCanMakeOne() throws Exception {
    Path shared = folder.getRoot().toPath();
    Path socket = Files.createFile(shared.resolve("agent.sock"));
    Files.setPosixFilePermissions(shared, PosixFilePermissions.fromString("rwxrwxrwx"));
    assertFalse("our own", Settings.isAnothers(socket));
    Assume.assumeTrue("only root can give a file away", Settings.user().equals("0"));
    Files.setAttribute(socket, "unix:uid", 65534);
    assertTrue(Settings.isAnothers(socket));
    Files.setPosixFilePermissions(shared, PosixFilePermissions.fromString("rwxr-xr-x"));
    assertFalse("where only its user can have put it", Settings.isAnothers(socket));
  }

  @Test
  public void whatMakesNoSenseIsNamed() {
    for (String[] one : new String[][] {
        {"threshold", "1 parsec", "512k"}, {"patience", "20", "20s"}, {"sealed", "perhaps", "true or false"},
        {"treshold", "1m", "spark.polycast.threshold"}}) {
      IllegalArgumentException error =
          assertThrows(IllegalArgumentException.class, () -> of("spark.polycast." + one[0], one[1]));
      assertTrue(error.getMessage(), error.getMessage().contains("spark.polycast." + one[0]));
      assertTrue(error.getMessage(), error.getMessage().contains(one[2]));
    }
  }

  @Test
  public void encryptionHasToBePromised() {
    assertEquals("spark.network.crypto.enabled", of("spark.network.crypto.enabled", "true").unsealed);
    assertNull(of("spark.network.crypto.enabled", "true", "spark.polycast.sealed", "true").unsealed);
    assertNull(of("spark.network.crypto.enabled", "false").unsealed);
  }
}
