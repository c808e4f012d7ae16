package io.polycast.spark;

/** What this process knows of broadcasts: it is the driver, or an executor. */
interface Side {
  /** The value of a broadcast; throws what makes the task fail where it is not to be had in any way. */
  <T> T value(PolycastBroadcast<T> broadcast);

  /** The side of this process. */
  final class Current {
    private static volatile Side side;

    private Current() {}

    static Side get() {
      Side now = side;
      if (now == null) {
        throw new IllegalStateException("Polycast's plugin does not run in this process: is it in spark.plugins?");
      }
      return now;
    }

    static synchronized void set(Side next) {
      side = next;
    }

    /** Whether there is one already, as where driver and executor are one process. */
    static synchronized boolean isSet() {
      return side != null;
    }

    static synchronized void clear(Side gone) {
      if (side == gone) {
        side = null;
      }
    }
  }
}
