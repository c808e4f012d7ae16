package io.polycast.spark;

/** Access to broadcast values in this process, which is the driver or an executor. */
interface Side {
  /**
   * Returns the value of a broadcast; throws an exception that fails the task if there is no way to get it.
   */
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

    /** Returns true if there is one already, as when driver and executor are one process. */
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
