/**
 * Broadcasts of Spark through Polycast's agents.
 *
 * <p>{@link io.polycast.spark.PolycastPlugin} is what Spark loads. On the driver it puts {@code Factory} where Spark's own
 * broadcast factory was; {@code DriverSide} serialises large values into files that the agent of the driver's host knows as
 * objects. On executors {@code ExecutorSide} asks the agent of its host for them. What is small, and whatever fails, goes to
 * the factory that was there before. See docs/howto/spark.md.
 */
package io.polycast.spark;
