package io.polycast.spark;

import org.apache.spark.SparkConf;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.broadcast.BroadcastFactory;
import scala.reflect.ClassTag;

/**
 * Makes the driver's broadcasts: large values through Polycast, the rest with Spark's own factory. The class
 * is public because Spark calls it through an interface of its own.
 */
public final class Factory implements BroadcastFactory {
  private final DriverSide driver;
  private final BroadcastFactory torrent;

  Factory(DriverSide driver, BroadcastFactory torrent) {
    this.driver = driver;
    this.torrent = torrent;
  }

  /** Returns Spark's own factory. */
  BroadcastFactory torrent() {
    return torrent;
  }

  @Override
  public void initialize(boolean isDriver, SparkConf conf) {
    // Spark has initialized its own factory, and this one needs nothing.
  }

  @Override
  public <T> Broadcast<T> newBroadcast(T value, boolean isLocal, long id, boolean serializedOnly, ClassTag<T> tag) {
    Broadcast<T> ours = isLocal || value == null ? null : driver.publish(value, id, serializedOnly, tag);
    return ours != null ? ours : torrent.newBroadcast(value, isLocal, id, serializedOnly, tag);
  }

  @Override
  public void unbroadcast(long id, boolean removeFromDriver, boolean blocking) {
    // Executors keep values from Polycast and from Torrent under the same number.
    torrent.unbroadcast(id, removeFromDriver, blocking);
    driver.remove(id, removeFromDriver, blocking);
  }

  @Override
  public void stop() {
    driver.close();
    torrent.stop();
  }
}
