package io.polycast.spark;

import java.io.IOException;
import java.lang.ref.Reference;
import java.lang.ref.SoftReference;
import java.lang.ref.WeakReference;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.broadcast.BroadcastFactory;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import io.polycast.agent.v1.AgentOuterClass.Peer;
import io.polycast.agent.v1.AgentOuterClass.RemoveResponse;
import io.polycast.agent.v1.AgentOuterClass.RemovedAt;
import io.polycast.agent.v1.AgentOuterClass.StatusResponse;
import scala.reflect.ClassTag;

/**
 * The driver: makes values known to the agent of its host, and gives Torrent the values that executors cannot
 * get.
 */
final class DriverSide implements Side {
  /** Question of an executor whether to wait for a value. */
  static final String COMING = "polycast-coming ";
  /** Request of an executor for a value through Torrent. */
  static final String TORRENT = "polycast-torrent ";

  private static final Logger LOG = LoggerFactory.getLogger(PolycastPlugin.class);
  /** Time for which the agent is not asked after it has failed. */
  private static final long REST_MS = 10_000;
  private static final long BLOCKING_S = 15;
  private static final int BUSY_TRIES = 20;
  private static final long BUSY_MS = 250;
  /** Largest number of objects that one call may name. */
  private static final int NAMED_MAX = 1_024;

  private final Settings settings;
  private final AgentClient agent;
  private final Counts counts;
  private final Warnings warnings = new Warnings(LOG);
  private final Map<Long, Published<?>> published = new ConcurrentHashMap<>();
  private final ExecutorService removals = Executors.newSingleThreadExecutor(work -> {
    Thread thread = new Thread(work, "polycast-removal");
    thread.setDaemon(true);
    return thread;
  });
  private volatile BroadcastFactory torrent;
  private Spool spool;
  private Refusal last;
  private long restsUntilMs;
  private boolean closed;

  DriverSide(Settings settings, UUID app, Counts counts) {
    this.settings = settings;
    this.counts = counts;
    agent = new AgentClient(settings.socket("driver"), app);
  }

  /** Sets the factory of the broadcasts that Polycast does not carry. */
  void fallBackTo(BroadcastFactory factory) {
    torrent = factory;
  }

  /** Returns a broadcast through Polycast, or null if the value is small or cannot go through it. */
  <T> Broadcast<T> publish(T value, long id, boolean serializedOnly, ClassTag<T> tag) {
    long begun = System.nanoTime();
    try {
      long storeBytes = ready();
      Spool.Writer writer = spool().writer(id, settings.thresholdBytes);
      try {
        Values.write(value, tag, writer);
        writer.close();
      } catch (RuntimeException | IOException error) {
        writer.discard();
        throw new Refusal(Refusal.FILE, "a value cannot be written below " + settings.spool + ": " + error, error);
      }
      if (writer.isSmall()) {
        return null;
      }
      if (storeBytes > 0 && writer.length() > storeBytes) {
        writer.discard();
        String sizes = writer.length() + " bytes is more than the agents' store holds, " + storeBytes + " (store-max)";
        throw new Refusal(Refusal.STORE_FULL, "broadcast " + id + " of " + sizes);
      }
      try {
        agent.add(id, writer.file(), "broadcast-" + id);
      } catch (Refusal refusal) {
        writer.discard();
        throw failed(refusal);
      }
      Reference<T> reference = serializedOnly ? new WeakReference<>(value) : new SoftReference<>(value);
      published.put(id, new Published<>(writer, tag, reference));
      counts.published(writer.length());
      double seconds = (System.nanoTime() - begun) / 1e9;
      LOG.info("Polycast: broadcast {} of {} bytes is at agent {} after {} s",
          id, writer.length(), agent.register(), String.format("%.3f", seconds));
      return new PolycastBroadcast<>(id, tag, writer.length(), writer.digests());
    } catch (Refusal refusal) {
      warnings.once(refusal);
      counts.torrent();
      return null;
    }
  }

  /**
   * Checks that the agent takes objects; returns the most bytes that its store may hold, or 0 if none is set.
   */
  private synchronized long ready() throws Refusal {
    if (settings.unsealed != null) {
      throw new Refusal(Refusal.ENCRYPTION, settings.unsealed + " asks for encryption, and spark.polycast.sealed does not say"
          + " that all agents have a key or certificates");
    }
    if (closed) {
      throw new Refusal(Refusal.NO_AGENT, "the application has ended");
    }
    if (last != null && System.currentTimeMillis() < restsUntilMs) {
      throw last;
    }
    try {
      StatusResponse status = agent.status();
      if (!status.getManagerConnected()) {
        String why = "agent " + status.getAgentName() + " is not at its manager: " + status.getManagerError();
        throw new Refusal(Refusal.NO_MANAGER, why);
      }
      last = null;
      return status.hasStoreMaxBytes() ? status.getStoreMaxBytes() : 0;
    } catch (Refusal refusal) {
      throw failed(refusal);
    }
  }

  private synchronized Refusal failed(Refusal refusal) {
    last = refusal;
    restsUntilMs = System.currentTimeMillis() + REST_MS;
    // The agent may have restarted and forgotten this process.
    agent.forget();
    return refusal;
  }

  private synchronized Spool spool() throws Refusal {
    try {
      if (spool == null) {
        spool = Spool.open(settings.spool);
      }
      return spool;
    } catch (IOException | UnsupportedOperationException error) {
      throw new Refusal(Refusal.FILE, "no files can be made below " + settings.spool + ": " + error.getMessage(), error);
    }
  }

  @Override
  @SuppressWarnings("unchecked")
  public <T> T value(PolycastBroadcast<T> broadcast) {
    Published<T> one = (Published<T>) published.get(broadcast.id());
    if (one == null) {
      throw new IllegalStateException("broadcast " + broadcast.id() + " has been destroyed");
    }
    return one.value();
  }

  /** Answers an executor: true if it should wait, the bytes of a Torrent broadcast, or a sentence. */
  Object answer(Object message) {
    String asked = String.valueOf(message);
    boolean insists = asked.startsWith(TORRENT);
    if (!insists && !asked.startsWith(COMING)) {
      return "the driver does not understand '" + asked + "'";
    }
    long id = Long.parseLong(asked.substring((insists ? TORRENT : COMING).length()));
    Published<?> one = published.get(id);
    if (one == null) {
      return "broadcast " + id + " has been destroyed";
    }
    if (!insists && one.isStillThere(id)) {
      return true;
    }
    try {
      return one.throughTorrent(id);
    } catch (IOException | RuntimeException error) {
      return "broadcast " + id + " cannot go through Torrent either: " + error;
    }
  }

  /** Removes a value from executors' hosts and, with `fromDriver`, from this one. */
  void remove(long id, boolean fromDriver, boolean blocking) {
    Published<?> one = fromDriver ? published.remove(id) : published.get(id);
    if (one == null || removals.isShutdown()) {
      return;
    }
    Future<?> done = removals.submit(() -> removeNow(id, one, fromDriver));
    if (blocking) {
      try {
        done.get(BLOCKING_S, TimeUnit.SECONDS);
      } catch (InterruptedException error) {
        Thread.currentThread().interrupt();
      } catch (ExecutionException | TimeoutException error) {
        LOG.info("Polycast: broadcast {} is not removed everywhere: {}", id, error.toString());
      }
    }
  }

  private void removeNow(long id, Published<?> one, boolean fromDriver) {
    try {
      List<String> at = new ArrayList<>();
      if (fromDriver) {
        agent.withdraw(id);
      } else {
        StatusResponse status = agent.status();
        status.getPeersList().stream().map(Peer::getName).filter(name -> !name.equals(status.getAgentName())).forEach(at::add);
      }
      if (fromDriver || !at.isEmpty()) {
        removeAt(Collections.singletonList(id), at);
      }
    } catch (Refusal refusal) {
      LOG.info("Polycast: broadcast {} stays in the agents' stores: {}", id, refusal.getMessage());
    } catch (InterruptedException ended) {
      Thread.currentThread().interrupt();
    }
    if (fromDriver) {
      one.writer.discard();
    }
  }

  /** Removes objects; repeats the request while an object is on its way to an agent. */
  private void removeAt(List<Long> ids, List<String> agents) throws Refusal, InterruptedException {
    for (int tries = 0; tries < BUSY_TRIES; tries++) {
      StatusResponse status = agent.status();
      if (!status.getManagerConnected()) {
        throw new Refusal(Refusal.NO_MANAGER, "agent " + status.getAgentName() + " is not at its manager");
      }
      RemoveResponse answer = agent.remove(ids, agents);
      String left = answer.getRemovedList().stream().map(RemovedAt::getError).filter(error -> !error.isEmpty())
          .findFirst().orElse(null);
      if (left == null) {
        return;
      }
      LOG.debug("Polycast: {}", left);
      Thread.sleep(BUSY_MS);
    }
  }

  /** Removes everything that is left of the application. */
  void close() {
    synchronized (this) {
      if (closed) {
        return;
      }
      closed = true;
    }
    removals.shutdown();
    try {
      removals.awaitTermination(BLOCKING_S, TimeUnit.SECONDS);
      List<Long> ids = new ArrayList<>(published.keySet());
      published.clear();
      for (int at = 0; at < ids.size(); at += NAMED_MAX) {
        removeAt(ids.subList(at, Math.min(ids.size(), at + NAMED_MAX)), Collections.emptyList());
      }
    } catch (Refusal refusal) {
      LOG.info("Polycast: broadcasts stay in the agents' stores: {}", refusal.getMessage());
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
    agent.close();
    synchronized (this) {
      if (spool != null) {
        spool.close();
      }
    }
    Side.Current.clear(this);
  }

  /** A value that the agent of this host has. */
  private final class Published<T> {
    private final Spool.Writer writer;
    private final ClassTag<T> tag;
    private Reference<T> value;
    private byte[] torrents;

    Published(Spool.Writer writer, ClassTag<T> tag, Reference<T> value) {
      this.writer = writer;
      this.tag = tag;
      this.value = value;
    }

    synchronized T value() {
      T now = value.get();
      if (now == null) {
        Path file = writer.file();
        try {
          now = writer.read(tag);
        } catch (IOException error) {
          throw new java.io.UncheckedIOException("a broadcast cannot be read from " + file, error);
        }
        value = new SoftReference<>(now);
      }
      return now;
    }

    /** Returns true if the agent can send the value; an agent that has restarted is told of it again. */
    boolean isStillThere(long id) {
      try {
        ready();
        agent.add(id, writer.file(), "broadcast-" + id);
        return true;
      } catch (Refusal refusal) {
        warnings.once(refusal);
        return false;
      }
    }

    /**
     * Returns the broadcast that Spark would have made, as bytes; it is made for the first executor that
     * needs it.
     */
    synchronized byte[] throughTorrent(long id) throws IOException {
      if (torrents == null) {
        // The value as it was broadcast: the program may have changed its own since.
        torrents = Values.pack(torrent.newBroadcast(writer.<T>read(tag), false, id, true, tag));
        counts.torrent();
        LOG.info("Polycast: broadcast {} goes through Torrent too, since an executor could not get it", id);
      }
      return torrents;
    }
  }
}
