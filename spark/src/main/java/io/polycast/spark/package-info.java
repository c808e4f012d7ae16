/**
 * Spark broadcasts through Polycast's agents.
 *
 * <p>Spark loads {@link io.polycast.spark.PolycastPlugin}. On the driver it replaces Spark's own broadcast
 * factory by {@code Factory}; {@code DriverSide} serialises large values into files that the agent of the
 * driver's host knows as objects. On executors {@code ExecutorSide} asks the agent of its host for these
 * objects. Small values, and values that Polycast fails to deliver, go through Spark's own factory. See
 * docs/howto/spark.md.
 */
package io.polycast.spark;
