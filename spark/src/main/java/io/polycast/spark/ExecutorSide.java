package io.polycast.spark;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Paths;
import java.util.UUID;
import java.util.concurrent.locks.ReentrantLock;
import org.apache.spark.broadcast.Broadcast;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import io.polycast.agent.v1.Objects.FetchEvent;

/** The executor: gets values from the agent of its host, or through Torrent if that fails. */
final class ExecutorSide implements Side {
  private static final Logger LOG = LoggerFactory.getLogger(PolycastPlugin.class);
  /** Time without progress after which the driver is asked. */
  private static final long QUIET_MS = 2_000;
  /** Longest wait for one value, even if there is progress. */
  private static final long LONGEST_MS = 3_600_000;
  /** Time for which the agent is not asked after it did not answer. */
  private static final long REST_MS = 5_000;
  private static final int LOCKS = 256;
  private static final int TRIES = 2;

  /** Asks the driver. */
  interface Driver {
    Object ask(Object message) throws Exception;
  }

  private final Settings settings;
  private final String name;
  private final AgentClient agent;
  private final Driver driver;
  private final Counts counts;
  private final Warnings warnings = new Warnings(LOG);
  private final ReentrantLock[] locks = new ReentrantLock[LOCKS];
  private volatile long restsUntilMs;

  ExecutorSide(Settings settings, UUID app, String name, Driver driver, Counts counts) {
    this.settings = settings;
    this.name = name;
    this.driver = driver;
    this.counts = counts;
    agent = new AgentClient(settings.socket(name), app);
    for (int at = 0; at < LOCKS; at++) {
      locks[at] = new ReentrantLock();
    }
  }

  /** Registers with the agent before the first value is needed. Errors are reported with that value. */
  void warmUp() {
    Thread thread = new Thread(() -> {
      try {
        agent.register();
      } catch (Refusal | RuntimeException | LinkageError error) {
        LOG.debug("Polycast: executor {} has no agent yet: {}", name, error.toString());
      }
    }, "polycast-warm-up");
    thread.setDaemon(true);
    thread.start();
  }

  void close() {
    agent.close();
    Side.Current.clear(this);
  }

  /** Returns a value: one thread of this executor gets it, and the others find it. */
  @Override
  public <T> T value(PolycastBroadcast<T> broadcast) {
    ReentrantLock lock = locks[(int) Math.floorMod(broadcast.id(), (long) LOCKS)];
    try {
      lock.lockInterruptibly();
      try {
        T here = Blocks.get(broadcast.id());
        return here != null ? here : get(broadcast);
      } finally {
        lock.unlock();
      }
    } catch (InterruptedException ended) {
      throw ExecutorSide.<RuntimeException>unchecked(ended);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private <T> T get(PolycastBroadcast<T> broadcast) throws InterruptedException, IOException {
    long begun = System.nanoTime();
    try {
      T value = fromAgent(broadcast);
      long nanos = System.nanoTime() - begun;
      counts.read(broadcast.bytes(), nanos);
      LOG.info("Polycast: executor {} has broadcast {} of {} bytes from agent {} after {} s",
          name, broadcast.id(), broadcast.bytes(), agent.register(), String.format("%.3f", nanos / 1e9));
      Blocks.put(broadcast.id(), value, broadcast.tag());
      return value;
    } catch (Refusal refusal) {
      warnings.once(refusal);
      return this.<T>fromTorrent(broadcast.id(), ask(DriverSide.TORRENT, broadcast.id()));
    } catch (GivenTorrent given) {
      return this.<T>fromTorrent(broadcast.id(), given.bytes);
    }
  }

  private <T> T fromAgent(PolycastBroadcast<T> broadcast)
      throws Refusal, GivenTorrent, InterruptedException, IOException {
    if (System.currentTimeMillis() < restsUntilMs) {
      throw new Refusal(Refusal.NO_AGENT, "the agent at " + settings.socket(name) + " did not answer just now");
    }
    for (int tries = 1; ; tries++) {
      io.polycast.agent.v1.Types.Object object;
      try {
        object = await(broadcast);
      } catch (Refusal refusal) {
        if (refusal.kind.equals(Refusal.NOT_REGISTERED) && tries < TRIES) {
          agent.forget();
          continue;
        }
        if (refusal.kind.equals(Refusal.NO_AGENT)) {
          restsUntilMs = System.currentTimeMillis() + REST_MS;
          agent.forget();
        }
        throw refusal;
      }
      try {
        if (object.getLength() != broadcast.bytes()) {
          throw new Pieces.Replaced("it has " + object.getLength() + " bytes, and the value has " + broadcast.bytes());
        }
        return broadcast.read(Paths.get(object.getPath()));
      } catch (Pieces.Replaced replaced) {
        String what = "agent " + agent.register() + " has something else as broadcast " + broadcast.id();
        throw new Refusal(Refusal.REPLACED, what + ": " + replaced.getMessage(), replaced);
      } catch (IOException gone) {
        // The object may have been evicted from the store before it was opened.
        if (tries >= TRIES) {
          throw new Refusal(Refusal.FILE, "a broadcast cannot be read from " + object.getPath() + ": " + gone, gone);
        }
      }
    }
  }

  /** Waits while there is progress, or while the driver says that there will be. */
  private io.polycast.agent.v1.Types.Object await(PolycastBroadcast<?> broadcast)
      throws Refusal, GivenTorrent, InterruptedException, IOException {
    AgentClient.Fetching fetching = agent.fetch(broadcast.id(), LONGEST_MS);
    try {
      long heard = System.nanoTime();
      while (true) {
        FetchEvent event = fetching.next(Math.min(QUIET_MS, settings.patienceMs));
        if (event != null && event.hasObject()) {
          return event.getObject();
        }
        if (event != null && event.hasProgress()) {
          heard = System.nanoTime();
        }
        if (event != null) {
          continue;
        }
        long quietMs = (System.nanoTime() - heard) / 1_000_000;
        if (quietMs >= settings.patienceMs) {
          String what = "nothing of broadcast " + broadcast.id() + " has come to executor " + name + " for " + quietMs + " ms";
          throw new Refusal(Refusal.LATE, what);
        }
        byte[] torrent = ask(DriverSide.COMING, broadcast.id());
        if (torrent != null) {
          throw new GivenTorrent(torrent);
        }
      }
    } finally {
      fetching.cancel();
    }
  }

  /** Asks the driver; returns the bytes of a Torrent broadcast, or null if the driver says to wait. */
  private byte[] ask(String what, long id) throws IOException, InterruptedException {
    Object answer;
    try {
      answer = driver.ask(what + id);
    } catch (InterruptedException ended) {
      throw ended;
    } catch (Exception error) {
      throw new IOException("the driver does not say what to do about broadcast " + id, error);
    }
    if (answer instanceof byte[]) {
      return (byte[]) answer;
    }
    if (Boolean.TRUE.equals(answer) && what.equals(DriverSide.COMING)) {
      return null;
    }
    throw new IOException(String.valueOf(answer));
  }

  @SuppressWarnings("unchecked")
  private <T> T fromTorrent(long id, byte[] bytes) throws IOException {
    counts.torrent();
    LOG.info("Polycast: executor {} gets broadcast {} through Torrent", name, id);
    try {
      return ((Broadcast<T>) Values.unpack(bytes)).value();
    } catch (ClassNotFoundException error) {
      throw new IOException("broadcast " + id + " is of a class that executor " + name + " does not know", error);
    }
  }

  @SuppressWarnings("unchecked")
  private static <E extends Throwable> E unchecked(Throwable error) throws E {
    throw (E) error;
  }

  /** Thrown if the driver has given up on Polycast for one value. */
  private static final class GivenTorrent extends Exception {
    private static final long serialVersionUID = 1L;

    final transient byte[] bytes;

    GivenTorrent(byte[] bytes) {
      super("through Torrent", null, false, false);
      this.bytes = bytes;
    }
  }
}
