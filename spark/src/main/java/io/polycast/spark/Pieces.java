package io.polycast.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;

/**
 * The pieces of a value's bytes, and the SHA-256 of each. Values come through agents, where another member of
 * the cluster can put something else in a value's place, and unpacking that could run code. So the driver
 * records the digests of what it writes, Spark's own connections bring them to executors, and the
 * deserializer gets no byte of a piece before the piece has been compared.
 */
final class Pieces {
  /** Length of all pieces but the last: a piece is still in the processor's cache when it is unpacked. */
  static final int LENGTH = 1 << 20;
  static final int DIGEST_LENGTH = 32;

  private Pieces() {}

  /** Makes a value from its bytes. */
  interface Unpacking<T> {
    T from(InputStream bytes) throws IOException;
  }

  /** Thrown if other bytes are in the place of a value. */
  static final class Replaced extends IOException {
    private static final long serialVersionUID = 1L;

    Replaced(String message) {
      super(message);
    }
  }

  /**
   * Reads the value with these digests. The file is opened once: a file that replaces it meanwhile is not
   * read.
   *
   * @throws Replaced if the file has other bytes
   */
  static <T> T read(Path file, long length, byte[] digests, Unpacking<T> unpacking) throws IOException {
    try (Reader bytes = new Reader(Files.newInputStream(file), file.toString(), length, digests)) {
      T value;
      try {
        value = unpacking.from(bytes);
      } catch (IOException | RuntimeException error) {
        // Serializers wrap the exceptions of their streams in exceptions of their own.
        bytes.check();
        throw error;
      }
      bytes.check();
      return value;
    }
  }

  private static MessageDigest sha256() {
    try {
      return MessageDigest.getInstance("SHA-256");
    } catch (NoSuchAlgorithmException missing) {
      throw new IllegalStateException("every Java has SHA-256", missing);
    }
  }

  /** Passes a value's bytes on, and records their digests. */
  static final class Writer extends OutputStream {
    private final OutputStream out;
    private final MessageDigest sha256 = sha256();
    private final ByteArrayOutputStream digests = new ByteArrayOutputStream();
    private int inPiece;

    Writer(OutputStream out) {
      this.out = out;
    }

    @Override
    public void write(int one) throws IOException {
      write(new byte[] {(byte) one}, 0, 1);
    }

    @Override
    public void write(byte[] bytes, int at, int count) throws IOException {
      out.write(bytes, at, count);
      int done = 0;
      while (done < count) {
        int fits = Math.min(count - done, LENGTH - inPiece);
        sha256.update(bytes, at + done, fits);
        done += fits;
        inPiece += fits;
        if (inPiece == LENGTH) {
          endPiece();
        }
      }
    }

    private void endPiece() {
      byte[] digest = sha256.digest();
      digests.write(digest, 0, digest.length);
      inPiece = 0;
    }

    @Override
    public void close() throws IOException {
      out.close();
    }

    /** Returns the digests of all written bytes, one after the other; nothing may be written afterwards. */
    byte[] digests() {
      if (inPiece > 0) {
        endPiece();
      }
      return digests.toByteArray();
    }
  }

  /** Gives a value's bytes, each piece only after it has been compared. */
  private static final class Reader extends InputStream {
    private final InputStream in;
    private final String where;
    private final byte[] digests;
    private final MessageDigest sha256 = sha256();
    private final byte[] piece;
    /** Range of the piece's bytes that have not been given yet. */
    private int at;
    private int end;
    /** Number of pieces that have been compared, and of the bytes after them. */
    private int compared;
    private long left;
    private Replaced replaced;

    Reader(InputStream in, String where, long length, byte[] digests) {
      this.in = in;
      this.where = where;
      this.digests = digests;
      left = length;
      piece = new byte[(int) Math.min(length, LENGTH)];
    }

    @Override
    public int read() throws IOException {
      return hasMore() ? piece[at++] & 0xff : -1;
    }

    @Override
    public int read(byte[] into, int from, int count) throws IOException {
      if (count == 0) {
        return 0;
      }
      if (!hasMore()) {
        return -1;
      }
      int given = Math.min(count, end - at);
      System.arraycopy(piece, at, into, from, given);
      at += given;
      return given;
    }

    @Override
    public int available() {
      return end - at;
    }

    @Override
    public void close() throws IOException {
      in.close();
    }

    /** Throws if other bytes than the value's were found. */
    void check() throws Replaced {
      if (replaced != null) {
        throw replaced;
      }
    }

    private boolean hasMore() throws IOException {
      check();
      if (at == end && left > 0) {
        int length = (int) Math.min(left, LENGTH);
        int got = fill(length);
        sha256.update(piece, 0, got);
        byte[] right = Arrays.copyOfRange(digests, compared * DIGEST_LENGTH, (compared + 1) * DIGEST_LENGTH);
        if (got < length || !MessageDigest.isEqual(sha256.digest(), right)) {
          long before = (long) compared * LENGTH;
          replaced = new Replaced("the bytes of " + where + " from " + before + " on are not those that the driver has written");
          throw replaced;
        }
        compared++;
        left -= length;
        at = 0;
        end = length;
      }
      return at < end;
    }

    private int fill(int length) throws IOException {
      int got = 0;
      while (got < length) {
        int more = in.read(piece, got, length - got);
        if (more < 0) {
          break;
        }
        got += more;
      }
      return got;
    }
  }
}
