package io.polycast.spark;

import com.codahale.metrics.Counter;
import com.codahale.metrics.MetricRegistry;
import com.codahale.metrics.Timer;
import java.util.concurrent.TimeUnit;

/** What Spark's metrics show of this plugin. */
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

  /** The driver's agent has a value. */
  void published(long bytes) {
    published.inc();
    publishedBytes.inc(bytes);
  }

  /** An executor has a value. */
  void read(long bytes, long nanos) {
    reads.update(nanos, TimeUnit.NANOSECONDS);
    readBytes.inc(bytes);
  }

  /** A value has gone another way. */
  void torrent() {
    torrent.inc();
  }
}
