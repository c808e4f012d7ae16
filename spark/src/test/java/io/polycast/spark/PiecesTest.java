package io.polycast.spark;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Arrays;
import java.util.Random;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

public class PiecesTest {
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  /** Runs code when it is unpacked. */
  private static final class Rogue implements Serializable {
    private static final long serialVersionUID = 1L;

    private final String marker;

    Rogue(Path marker) {
      this.marker = marker.toString();
    }

    private void readObject(ObjectInputStream in) throws IOException, ClassNotFoundException {
      in.defaultReadObject();
      Files.createFile(java.nio.file.Paths.get(marker));
    }
  }

  private Path file() {
    return folder.getRoot().toPath().resolve("value");
  }

  /** Writes a value as the driver does, in chunks of this many bytes; returns its digests. */
  private byte[] write(byte[] value, int each) throws IOException {
    try (Pieces.Writer out = new Pieces.Writer(Files.newOutputStream(file()))) {
      for (int at = 0; at < value.length; at += each) {
        out.write(value, at, Math.min(each, value.length - at));
      }
      return out.digests();
    }
  }

  private static byte[] random(int length) {
    byte[] bytes = new byte[length];
    new Random(length).nextBytes(bytes);
    return bytes;
  }

  private static byte[] serialised(Object value) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
      out.writeObject(value);
    }
    return bytes.toByteArray();
  }

  private static Object unpacked(InputStream in) throws IOException {
    try {
      return new ObjectInputStream(in).readObject();
    } catch (ClassNotFoundException error) {
      throw new IOException(error);
    }
  }

  private static byte[] all(InputStream in) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    byte[] some = new byte[10_007];
    for (int got = in.read(some); got >= 0; got = in.read(some)) {
      bytes.write(some, 0, got);
      int one = in.read();
      if (one >= 0) {
        bytes.write(one);
      }
    }
    return bytes.toByteArray();
  }

  @Test
  public void whatWasWrittenIsRead() throws IOException {
    for (int length : new int[] {0, 1, Pieces.LENGTH - 1, Pieces.LENGTH, Pieces.LENGTH + 1, 3 * Pieces.LENGTH + 5}) {
      byte[] value = random(length);
      byte[] digests = write(value, 700_001);
      assertEquals((length + Pieces.LENGTH - 1) / Pieces.LENGTH * Pieces.DIGEST_LENGTH, digests.length);
      assertArrayEquals(digests, write(value, Math.max(1, length)));
      assertArrayEquals(value, Pieces.read(file(), length, digests, PiecesTest::all));
    }
  }

  @Test
  public void whatWasPutInTheValuesPlaceRunsNothing() throws IOException {
    Path marker = folder.getRoot().toPath().resolve("ran");
    byte[] rogue = serialised(new Rogue(marker));
    // Both have the same length, so the length shows no difference.
    byte[] value = serialised(new byte[rogue.length - serialised(new byte[0]).length]);
    assertEquals(rogue.length, value.length);
    byte[] digests = write(value, value.length);
    assertTrue(Pieces.read(file(), value.length, digests, PiecesTest::unpacked) instanceof byte[]);
    Files.write(file(), rogue);
    Pieces.Replaced replaced =
        assertThrows(Pieces.Replaced.class, () -> Pieces.read(file(), value.length, digests, PiecesTest::unpacked));
    assertTrue(replaced.getMessage(), replaced.getMessage().contains(file().toString()));
    assertFalse("it has run", Files.exists(marker));
    unpacked(Files.newInputStream(file()));
    assertTrue("it would have", Files.exists(marker));
  }

  @Test
  public void noByteOfAnotherPieceIsGiven() throws IOException {
    int length = 3 * Pieces.LENGTH + 100;
    byte[] value = random(length);
    byte[] digests = write(value, length);
    for (int changed : new int[] {0, Pieces.LENGTH, 2 * Pieces.LENGTH - 1, length - 1}) {
      byte[] other = value.clone();
      other[changed] ^= 1;
      Files.write(file(), other);
      ByteArrayOutputStream given = new ByteArrayOutputStream();
      assertThrows(Pieces.Replaced.class, () -> Pieces.read(file(), length, digests, in -> {
        for (int one = in.read(); one >= 0; one = in.read()) {
          given.write(one);
        }
        return null;
      }));
      int before = changed / Pieces.LENGTH * Pieces.LENGTH;
      assertArrayEquals(Arrays.copyOf(value, before), given.toByteArray());
    }
    // Correct pieces in the wrong order, and too few pieces.
    byte[] other = value.clone();
    System.arraycopy(value, 0, other, Pieces.LENGTH, Pieces.LENGTH);
    System.arraycopy(value, Pieces.LENGTH, other, 0, Pieces.LENGTH);
    Files.write(file(), other);
    assertThrows(Pieces.Replaced.class, () -> Pieces.read(file(), length, digests, PiecesTest::all));
    Files.write(file(), Arrays.copyOf(value, 2 * Pieces.LENGTH));
    assertThrows(Pieces.Replaced.class, () -> Pieces.read(file(), length, digests, PiecesTest::all));
    // Bytes after the value are not read.
    Files.write(file(), Arrays.copyOf(value, length + 1));
    assertArrayEquals(value, Pieces.read(file(), length, digests, PiecesTest::all));
  }

  @Test
  public void whatIsPutThereMeanwhileIsNotUnpacked() throws IOException {
    int length = 2 * Pieces.LENGTH;
    byte[] value = random(length);
    byte[] digests = write(value, length);
    Path other = folder.getRoot().toPath().resolve("other");
    Files.write(other, random(length + 1));
    byte[] read = Pieces.read(file(), length, digests, in -> {
      // Another file takes the value's name once the value is open.
      Files.move(other, file(), StandardCopyOption.REPLACE_EXISTING);
      return all(in);
    });
    assertArrayEquals(value, read);
    assertArrayEquals(digests, write(value, length));
    assertThrows(Pieces.Replaced.class, () -> Pieces.read(file(), length, digests, in -> {
      in.read();
      // The same file gets other bytes.
      Files.write(file(), random(length + 1));
      return all(in);
    }));
  }

  @Test
  public void itIsSaidAlsoWhereTheSerializerSaysSomethingElse() throws IOException {
    byte[] value = random(1_000);
    byte[] digests = write(value, 1_000);
    Files.write(file(), random(1_001));
    Pieces.Unpacking<byte[]> wraps = in -> {
      try {
        return all(in);
      } catch (IOException error) {
        throw new UncheckedIOException(error);
      }
    };
    assertThrows(Pieces.Replaced.class, () -> Pieces.read(file(), 1_000, digests, wraps));
    Pieces.Unpacking<byte[]> swallows = in -> {
      try {
        return all(in);
      } catch (IOException error) {
        return new byte[0];
      }
    };
    assertThrows(Pieces.Replaced.class, () -> Pieces.read(file(), 1_000, digests, swallows));
  }
}
