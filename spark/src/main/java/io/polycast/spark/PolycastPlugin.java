package io.polycast.spark;

import java.lang.reflect.Field;
import java.util.Collections;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.api.plugin.DriverPlugin;
import org.apache.spark.api.plugin.ExecutorPlugin;
import org.apache.spark.api.plugin.PluginContext;
import org.apache.spark.api.plugin.SparkPlugin;
import org.apache.spark.broadcast.BroadcastFactory;
import org.apache.spark.broadcast.BroadcastManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.Tuple2;

/** The plugin that `spark.plugins` names. */
public final class PolycastPlugin implements SparkPlugin {
  private static final Logger LOG = LoggerFactory.getLogger(PolycastPlugin.class);
  /** Key under which executors are told the application's id. */
  private static final String APP = "polycast-app";

  @Override
  public DriverPlugin driverPlugin() {
    return new Driver();
  }

  @Override
  public ExecutorPlugin executorPlugin() {
    return new Executor();
  }

  private static Settings settings(SparkConf conf) {
    Map<String, String> all = new HashMap<>();
    for (Tuple2<String, String> one : conf.getAll()) {
      all.put(one._1(), one._2());
    }
    return Settings.of(all);
  }

  /**
   * Replaces Spark's broadcast factory. Spark has no setting for it: it is a private field of the manager,
   * with the same name in all versions from 3.5 on.
   */
  private static void swap(BroadcastManager manager, DriverSide side) throws ReflectiveOperationException {
    Field field = BroadcastManager.class.getDeclaredField("broadcastFactory");
    field.setAccessible(true);
    synchronized (manager) {
      BroadcastFactory torrent = (BroadcastFactory) field.get(manager);
      side.fallBackTo(torrent);
      field.set(manager, new Factory(side, torrent));
    }
  }

  private static final class Driver implements DriverPlugin {
    private DriverSide side;

    @Override
    public Map<String, String> init(SparkContext context, PluginContext plugin) {
      Settings settings = settings(context.conf());
      if (!settings.enabled || context.isLocal()) {
        return Collections.emptyMap();
      }
      UUID app = UUID.randomUUID();
      side = new DriverSide(settings, app, new Counts(plugin.metricRegistry()));
      Side.Current.set(side);
      try {
        swap(SparkEnv.get().broadcastManager(), side);
      } catch (ReflectiveOperationException | RuntimeException error) {
        LOG.warn("Polycast does not know this version of Spark, and all broadcasts go through Torrent: {}", error.toString());
        side.close();
        side = null;
        return Collections.emptyMap();
      }
      return Collections.singletonMap(APP, app.toString());
    }

    @Override
    public Object receive(Object message) {
      return side == null ? "Polycast does not run" : side.answer(message);
    }

    @Override
    public void shutdown() {
      if (side != null) {
        side.close();
      }
    }
  }

  private static final class Executor implements ExecutorPlugin {
    private ExecutorSide side;

    @Override
    public void init(PluginContext plugin, Map<String, String> told) {
      String app = told == null ? null : told.get(APP);
      if (app == null || Side.Current.isSet()) {
        return;
      }
      Counts counts = new Counts(plugin.metricRegistry());
      side = new ExecutorSide(settings(plugin.conf()), UUID.fromString(app), plugin.executorID(), plugin::ask, counts);
      Side.Current.set(side);
      side.warmUp();
    }

    @Override
    public void shutdown() {
      if (side != null) {
        side.close();
      }
    }
  }
}
