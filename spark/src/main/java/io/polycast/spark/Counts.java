package io.polycast.spark;

import com.codahale.metrics.Counter;
import com.codahale.metrics.MetricRegistry;
import com.codahale.metrics.Timer;
import java.util.concurrent.TimeUnit;

/** This plugin's part of Spark's metrics. */
final class Counts {
  private final Counter publishedBytes;
  private final Counter published;
  private final Counter readBytes;
  private final Timer reads;
  private final Counter torrent;

  Counts(MetricRegistry registry) {
    published = registry.counter("published");
    publishedBytes = registry.counter("publishedBytes");
    reads = registry.timer("reads");
    readBytes = registry.counter("readBytes");
    torrent = registry.counter("torrent");
  }

  /** Counts a value that the driver's agent has. */
  void published(long bytes) {
    published.inc();
    publishedBytes.inc(bytes);
  }

  /** Counts a value that an executor has. */
  void read(long bytes, long nanos) {
    reads.update(nanos, TimeUnit.NANOSECONDS);
    readBytes.inc(bytes);
  }

  /** Counts a value that went through Torrent. */
  void torrent() {
    torrent.inc();
  }
}
