package io.polycast.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.channels.FileChannel;
import java.nio.channels.OverlappingFileLockException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;
import java.util.UUID;
import scala.reflect.ClassTag;

/**
 * Files with the driver's serialised values, in memory unless settings say otherwise. They are removed with
 * the driver; files of a driver that was killed are removed when the next driver on the host starts.
 */
final class Spool {
  private static final String LOCK = "lock";
  private static final String OWNER_ONLY = "rwx------";
  /** Time for which a folder may be without its lock. */
  private static final long YOUNG_MS = 10_000;
  /** Folders of this process, which are skipped: looking at their locks would release them. */
  private static final Set<Path> OWN = Collections.synchronizedSet(new HashSet<>());

  private final Path folder;
  private final FileChannel lock;

  private Spool(Path folder, FileChannel lock) {
    this.folder = folder;
    this.lock = lock;
  }

  /** Makes a new folder in this one, which is made if it is missing. */
  static Spool open(Path below) throws IOException {
    if (!Files.isDirectory(below)) {
      Files.createDirectories(below.toAbsolutePath().getParent());
      try {
        Files.createDirectory(below, PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString(OWNER_ONLY)));
      } catch (java.nio.file.FileAlreadyExistsException another) {
        // Another driver was faster; the owner is checked below.
      }
    }
    // Every user may write to shared memory.
    Set<PosixFilePermission> allowed = Files.getPosixFilePermissions(below, LinkOption.NOFOLLOW_LINKS);
    boolean ours = Files.getAttribute(below, "unix:uid", LinkOption.NOFOLLOW_LINKS).toString().equals(Settings.user());
    if (!ours || !allowed.equals(PosixFilePermissions.fromString(OWNER_ONLY))) {
      throw new IOException("the folder " + below + " has to belong to this user alone, with the mode 0700");
    }
    sweep(below);
    Path folder = below.resolve(UUID.randomUUID().toString());
    OWN.add(folder);
    Files.createDirectory(folder);
    FileChannel lock =
        FileChannel.open(folder.resolve(LOCK), StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
    lock.lock();
    return new Spool(folder, lock);
  }

  /** Removes the folders of dead drivers, whose locks the system has released. */
  private static void sweep(Path below) throws IOException {
    try (DirectoryStream<Path> folders = Files.newDirectoryStream(below)) {
      for (Path folder : folders) {
        if (!OWN.contains(folder) && isDead(folder.resolve(LOCK))) {
          remove(folder);
        }
      }
    }
  }

  private static boolean isDead(Path lock) {
    try (FileChannel channel = FileChannel.open(lock, StandardOpenOption.WRITE)) {
      long age = System.currentTimeMillis() - Files.getLastModifiedTime(lock).toMillis();
      return age > YOUNG_MS && channel.tryLock() != null;
    } catch (IOException | OverlappingFileLockException error) {
      return false;
    }
  }

  private static void remove(Path folder) {
    try (DirectoryStream<Path> files = Files.newDirectoryStream(folder)) {
      for (Path file : files) {
        Files.deleteIfExists(file);
      }
      Files.deleteIfExists(folder);
    } catch (IOException error) {
      // Another driver that has just started removes it too.
    }
  }

  /** Returns a writer for a value, which uses a file once the value has this many bytes. */
  Writer writer(long id, long smallBytes) {
    return new Writer(folder.resolve("broadcast-" + id), smallBytes);
  }

  void close() {
    remove(folder);
    OWN.remove(folder);
    try {
      lock.close();
    } catch (IOException error) {
      // The lock ends with the process at the latest.
    }
  }

  /** A value on its way into a file. */
  static final class Writer extends OutputStream {
    private static final int CHUNK = 1 << 20;

    private final Path file;
    private final long smallBytes;
    private ByteArrayOutputStream waiting = new ByteArrayOutputStream();
    private Pieces.Writer out;
    private byte[] digests;
    private long written;

    Writer(Path file, long smallBytes) {
      this.file = file;
      this.smallBytes = smallBytes;
    }

    @Override
    public void write(int one) throws IOException {
      write(new byte[] {(byte) one}, 0, 1);
    }

    @Override
    public void write(byte[] bytes, int at, int count) throws IOException {
      written += count;
      waiting.write(bytes, at, count);
      if (waiting.size() >= CHUNK) {
        pour();
      }
    }

    /** Writes the waiting bytes to the file, if the value is large enough for one. */
    private void pour() throws IOException {
      if (out == null && written < smallBytes) {
        return;
      }
      if (out == null) {
        Set<PosixFilePermission> ownerOnly = PosixFilePermissions.fromString("rw-------");
        Files.createFile(file, PosixFilePermissions.asFileAttribute(ownerOnly));
        out = new Pieces.Writer(Files.newOutputStream(file));
      }
      waiting.writeTo(out);
      waiting.reset();
    }

    @Override
    public void close() throws IOException {
      if (waiting != null) {
        pour();
        waiting = null;
        if (out != null) {
          out.close();
          digests = out.digests();
        }
      }
    }

    /** Returns true if the value is too small for a file. */
    boolean isSmall() {
      return out == null;
    }

    long length() {
      return written;
    }

    /** Returns the digests of the value's pieces, once the writer is closed and if the value is not small. */
    byte[] digests() {
      return digests;
    }

    /** Reads the value as it was written. */
    <T> T read(ClassTag<T> tag) throws IOException {
      return Values.read(file, written, digests, tag);
    }

    Path file() {
      return file;
    }

    /** Removes the file, even if it is incomplete. */
    void discard() {
      try {
        if (out != null) {
          out.close();
        }
        Files.deleteIfExists(file);
      } catch (IOException error) {
        // The file is removed with its folder.
      }
    }
  }
}
