package io.polycast.spark;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.broadcast.Broadcast;

/**
 * Measures broadcasts of random bytes; knows nothing of Polycast. Arguments: executors, rounds, and sizes in
 * MB. Prints for each round `BROADCAST megabytes seconds slowest-reader-seconds`: the time from the call of
 * broadcast to the end of the job in which every executor has read the value, and the wait of the slowest
 * executor for it.
 */
public final class BroadcastBench {
  private static final int MEGABYTE = 1_000_000;

  private BroadcastBench() {}

  public static void main(String[] arguments) throws Exception {
    int executors = Integer.parseInt(arguments[0]);
    int rounds = Integer.parseInt(arguments[1]);
    List<Integer> sizes = Arrays.stream(arguments).skip(2).map(Integer::parseInt).collect(Collectors.toList());
    try (JavaSparkContext context = new JavaSparkContext(new SparkConf().setAppName("broadcast"))) {
      List<Integer> places = IntStream.range(0, executors).boxed().collect(Collectors.toList());
      while (onAll(context, places, null, 0).size() < executors) {
        Thread.sleep(200);
      }
      for (int round = 0; round <= rounds; round++) {
        for (int megabytes : sizes) {
          byte[] value = new byte[megabytes * MEGABYTE];
          new Random(round).nextBytes(value);
          long begun = System.nanoTime();
          Broadcast<byte[]> broadcast = context.broadcast(value);
          List<Double> waits = onAll(context, places, broadcast, Arrays.hashCode(value));
          double seconds = (System.nanoTime() - begun) / 1e9;
          if (waits.size() < executors) {
            throw new IllegalStateException("only " + waits.size() + " executors have read the value");
          }
          double slowest = waits.stream().mapToDouble(Double::doubleValue).max().getAsDouble();
          // The first round only warms up.
          System.out.printf("%s %d %.3f %.3f%n", round == 0 ? "WARM" : "BROADCAST", megabytes, seconds, slowest);
          broadcast.destroy(true);
        }
      }
    }
  }

  /**
   * Runs a task on each executor; returns the seconds that each distinct executor has waited for the value.
   */
  private static List<Double> onAll(JavaSparkContext context, List<Integer> places, Broadcast<byte[]> value, int hash) {
    List<String> done = context.parallelize(places, places.size()).map(place -> {
      long begun = System.nanoTime();
      if (value != null) {
        byte[] read = value.value();
        long waited = System.nanoTime() - begun;
        if (Arrays.hashCode(read) != hash) {
          throw new IllegalStateException("the value is not what was broadcast");
        }
        return SparkEnv.get().executorId() + " " + waited;
      }
      // Long enough that no executor gets two of the tasks.
      Thread.sleep(500);
      return SparkEnv.get().executorId() + " 0";
    }).collect();
    List<String> seen = new ArrayList<>();
    List<Double> waits = new ArrayList<>();
    for (String one : done) {
      String[] parts = one.split(" ");
      if (!seen.contains(parts[0])) {
        seen.add(parts[0]);
        waits.add(Long.parseLong(parts[1]) / 1e9);
      }
    }
    return waits;
  }
}
