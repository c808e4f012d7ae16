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
 * A value's bytes, and the SHA-256 of each piece of them. Values come by way of agents, where another member of the cluster can put
 * something else in a value's place, and what is unpacked can run code. So the driver notes what it writes, Spark's own connections
 * bring that to executors, and what unpacks a value is given no byte before the piece that it is in has been compared.
 */
final class Pieces {
  /** Length of all pieces but the last: short enough that a piece is in the processor's cache still when it is unpacked. */
  static final int LENGTH = 1 << 20;
  static final int DIGEST_LENGTH = 32;

  private Pieces() {}

  /** Makes a value of its bytes. */
  interface Unpacking<T> {
    T from(InputStream bytes) throws IOException;
  }

  /** Something else is in the place of a value. */
  static final class Replaced extends IOException {
    private static final long serialVersionUID = 1L;

    Replaced(String message) {
      super(message);
    }
  }

  /**
   * Reads the value of which these are the digests. The file is opened once: what is put in its place meanwhile is not read.
   *
   * @throws Replaced where the file has other bytes
   */
  static <T> T read(Path file, long length, byte[] digests, Unpacking<T> unpacking) throws IOException {
    try (Reader bytes = new Reader(Files.newInputStream(file), file.toString(), length, digests)) {
      T value;
      try {
        value = unpacking.from(bytes);
      } catch (IOException | RuntimeException error) {
        // Serializers put what they meet into exceptions of their own.
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

  /** Passes a value's bytes on, and notes their digests. */
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

    /** The digests of all that was written, one behind the other; nothing more is written then. */
    byte[] digests() {
      if (inPiece > 0) {
        endPiece();
      }
      return digests.toByteArray();
    }
  }

  /** Gives a value's bytes, each piece once it has been compared. */
  private static final class Reader extends InputStream {
    private final InputStream in;
    private final String where;
    private final byte[] digests;
    private final MessageDigest sha256 = sha256();
    private final byte[] piece;
    /** Which bytes of the piece have not been given yet. */
    private int at;
    private int end;
    /** How many pieces have been compared, and how many bytes come behind them. */
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

    /** Throws what was found, if that was something else than the value. */
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
