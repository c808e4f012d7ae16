package io.polycast.spark;

import java.io.IOException;
import java.io.ObjectOutputStream;
import java.lang.ref.Reference;
import java.lang.ref.SoftReference;
import java.nio.file.Path;
import org.apache.spark.SparkEnv;
import org.apache.spark.broadcast.Broadcast;
import scala.reflect.ClassTag;

/**
 * A broadcast whose bytes are a Polycast object. The class is public because code that Spark generates names
 * it.
 *
 * @param <T> type of the value
 */
public final class PolycastBroadcast<T> extends Broadcast<T> {
  private static final long serialVersionUID = 2L;

  private final ClassTag<T> tag;
  private final long bytes;
  /** Digests of the pieces that the driver has written: Spark brings the digests, and agents the bytes. */
  private final byte[] digests;
  private transient volatile Reference<T> seen;

  PolycastBroadcast(long id, ClassTag<T> tag, long bytes, byte[] digests) {
    super(id, tag);
    this.tag = tag;
    this.bytes = bytes;
    this.digests = digests;
  }

  /** Returns the length of the serialised value. */
  long bytes() {
    return bytes;
  }

  ClassTag<T> tag() {
    return tag;
  }

  /** Reads the value from this file, if the file has it. */
  T read(Path file) throws IOException {
    return Values.read(file, bytes, digests, tag);
  }

  @Override
  public T getValue() {
    // Tasks ask once for each of their records.
    Reference<T> before = seen;
    T value = before == null ? null : before.get();
    if (value == null) {
      value = Side.Current.get().value(this);
      seen = new SoftReference<>(value);
    }
    return value;
  }

  @Override
  public void doUnpersist(boolean blocking) {
    SparkEnv.get().broadcastManager().unbroadcast(id(), false, blocking);
  }

  @Override
  public void doDestroy(boolean blocking) {
    SparkEnv.get().broadcastManager().unbroadcast(id(), true, blocking);
  }

  private void writeObject(ObjectOutputStream out) throws IOException {
    assertValid();
    out.defaultWriteObject();
  }
}
