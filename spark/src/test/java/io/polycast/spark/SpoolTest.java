package io.polycast.spark;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Random;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

public class SpoolTest {
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  private Path below() {
    return folder.getRoot().toPath().resolve("spool");
  }

  private static byte[] bytes(int count) {
    byte[] bytes = new byte[count];
    new Random(count).nextBytes(bytes);
    return bytes;
  }

  @Test
  public void onlyWhatIsLargeMakesAFile() throws IOException {
    Spool spool = Spool.open(below());
    Spool.Writer small = spool.writer(1, 1_000);
    small.write(bytes(999));
    small.close();
    assertTrue(small.isSmall());
    assertFalse(Files.exists(small.file()));
    for (int count : new int[] {1_000, 3_000_001}) {
      Spool.Writer large = spool.writer(count, 1_000);
      byte[] bytes = bytes(count);
      large.write(bytes[0]);
      large.write(bytes, 1, count / 2);
      large.write(bytes, 1 + count / 2, count - 1 - count / 2);
      large.close();
      assertFalse(large.isSmall());
      assertEquals(count, large.length());
      assertArrayEquals(bytes, Files.readAllBytes(large.file()));
      byte[] read = Pieces.read(large.file(), count, large.digests(), in -> {
        byte[] first = new byte[1];
        assertEquals(1, in.read(first));
        return first;
      });
      assertArrayEquals(new byte[] {bytes[0]}, read);
      assertEquals("rw-------", PosixFilePermissions.toString(Files.getPosixFilePermissions(large.file())));
    }
    spool.close();
    assertEquals(0, below().toFile().list().length);
  }

  @Test
  public void whatTheDeadHaveLeftGoes() throws IOException {
    Spool alive = Spool.open(below());
    Path dead = Files.createDirectory(below().resolve("dead"));
    Path lock = Files.createFile(dead.resolve("lock"));
    Files.createFile(dead.resolve("broadcast-1"));
    Path young = Files.createDirectory(below().resolve("young"));
    Files.createFile(young.resolve("lock"));
    Files.setLastModifiedTime(lock, FileTime.fromMillis(System.currentTimeMillis() - 60_000));
    Spool next = Spool.open(below());
    assertFalse(Files.exists(dead));
    assertTrue(Files.exists(young));
    assertEquals(3, below().toFile().list().length);
    next.close();
    alive.close();
  }

  @Test
  public void aFolderOfOthersIsRefused() throws IOException {
    Files.createDirectory(below());
    Files.setPosixFilePermissions(below(), PosixFilePermissions.fromString("rwxrwxrwx"));
    IOException error = assertThrows(IOException.class, () -> Spool.open(below()));
    assertTrue(error.getMessage(), error.getMessage().contains("0700"));
  }
}
