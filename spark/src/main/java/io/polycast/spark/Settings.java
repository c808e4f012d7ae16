package io.polycast.spark;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.PosixFilePermission;
import java.util.Arrays;
import java.util.Map;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** The settings `spark.polycast.*`. */
final class Settings {
  static final String PREFIX = "spark.polycast.";
  private static final String[] NAMES = {"enabled", "patience", "sealed", "socket", "spool", "threshold"};
  private static final Pattern NUMBER = Pattern.compile("(\\d{1,15}) *([a-z]*)");
  /** Spark's settings that ask to protect its connections or files. */
  private static final String[] ENCRYPTS = {
    "spark.authenticate",
    "spark.io.encryption.enabled",
    "spark.network.crypto.enabled",
    "spark.ssl.rpc.enabled",
  };

  /** Set if values go through Polycast at all. */
  final boolean enabled;
  /** Serialised values with fewer bytes stay with Torrent. */
  final long thresholdBytes;
  /** Time for which an executor waits without progress. */
  final long patienceMs;
  /** Folder of the driver's files. */
  final Path spool;
  /** Setting of Spark that asks for encryption, if the agents' encryption is not promised; otherwise null. */
  final String unsealed;

  private final String socket;

  private Settings(Map<String, String> of, Map<String, String> spark) {
    for (String name : of.keySet()) {
      if (!Arrays.asList(NAMES).contains(name)) {
        String known = PREFIX + String.join(", " + PREFIX, NAMES);
        throw new IllegalArgumentException("there is no setting " + PREFIX + name + ": there are " + known);
      }
    }
    enabled = yes(of, "enabled", true);
    thresholdBytes = bytes(of, "threshold", 1 << 20);
    patienceMs = millis(of, "patience", 20_000);
    spool = Paths.get(of.getOrDefault("spool", folder() + "/polycast-spark-" + user()));
    socket = of.getOrDefault("socket", socketOf(System.getenv("POLYCAST_SOCKET"), System.getenv("XDG_RUNTIME_DIR")));
    String asks = null;
    for (String name : ENCRYPTS) {
      if (asks == null && "true".equals(spark.get(name))) {
        asks = name;
      }
    }
    unsealed = yes(of, "sealed", false) ? null : asks;
  }

  /** Reads all settings of an application; throws one sentence about the first that is invalid. */
  static Settings of(Map<String, String> spark) {
    Map<String, String> ours = new TreeMap<>();
    spark.forEach((name, value) -> {
      if (name.startsWith(PREFIX)) {
        ours.put(name.substring(PREFIX.length()), value.trim());
      }
    });
    return new Settings(ours, spark);
  }

  /** Returns the socket of the agent for this executor, or for `driver`. */
  Path socket(String executor) {
    return Paths.get(socket.replace("{executor}", executor));
  }

  private static String socketOf(String told, String runtime) {
    if (told != null && !told.isEmpty()) {
      return told;
    }
    boolean has = runtime != null && !runtime.isEmpty();
    return has ? runtime + "/polycast-agent.sock" : ownFolder() + "/agent.sock";
  }

  /** Returns the folder of this user's agents in shared memory. Every user of the host can make it. */
  static String ownFolder() {
    return "/dev/shm/polycast-" + user();
  }

  /** Returns true if every user could have put a socket in this place, and another user has. */
  static boolean isAnothers(Path socket) {
    Path folder = socket.toAbsolutePath().getParent();
    return (socket.startsWith(ownFolder()) && !isOwn(folder)) || (isShared(folder) && !isOwn(socket));
  }

  private static boolean isShared(Path folder) {
    try {
      return Files.getPosixFilePermissions(folder).contains(PosixFilePermission.OTHERS_WRITE);
    } catch (IOException | UnsupportedOperationException error) {
      return false;
    }
  }

  /** Returns true if a file or folder belongs to this user or to root. */
  static boolean isOwn(Path path) {
    try {
      String owner = Files.getAttribute(path, "unix:uid", LinkOption.NOFOLLOW_LINKS).toString();
      return owner.equals(user()) || owner.equals("0");
    } catch (IOException | UnsupportedOperationException | IllegalArgumentException error) {
      return false;
    }
  }

  private static String folder() {
    return Files.isDirectory(Paths.get("/dev/shm")) ? "/dev/shm" : System.getProperty("java.io.tmpdir");
  }

  /** Returns the number of this process's user. */
  static String user() {
    try {
      return Files.getAttribute(Paths.get("/proc/self"), "unix:uid").toString();
    } catch (IOException | UnsupportedOperationException | IllegalArgumentException error) {
      return System.getProperty("user.name");
    }
  }

  private static boolean yes(Map<String, String> of, String name, boolean otherwise) {
    String value = of.getOrDefault(name, String.valueOf(otherwise));
    if (!value.equals("true") && !value.equals("false")) {
      throw wrong(name, value, "write true or false");
    }
    return value.equals("true");
  }

  private static long bytes(Map<String, String> of, String name, long otherwise) {
    String value = of.get(name);
    if (value == null) {
      return otherwise;
    }
    Matcher parts = NUMBER.matcher(value.toLowerCase(java.util.Locale.ROOT));
    int shift = parts.matches() ? shift(parts.group(2)) : -1;
    if (shift < 0) {
      throw wrong(name, value, "write a size such as 512k, 1m or 2g");
    }
    return Long.parseLong(parts.group(1)) << shift;
  }

  private static int shift(String unit) {
    switch (unit) {
      case "":
      case "b":
        return 0;
      case "k":
      case "kb":
      case "kib":
        return 10;
      case "m":
      case "mb":
      case "mib":
        return 20;
      case "g":
      case "gb":
      case "gib":
        return 30;
      default:
        return -1;
    }
  }

  private static long millis(Map<String, String> of, String name, long otherwise) {
    String value = of.get(name);
    if (value == null) {
      return otherwise;
    }
    Matcher parts = NUMBER.matcher(value.toLowerCase(java.util.Locale.ROOT));
    String unit = parts.matches() ? parts.group(2) : "none";
    long each = unit.equals("ms") ? 1 : unit.equals("s") ? 1_000 : unit.equals("min") ? 60_000 : 0;
    if (each == 0) {
      throw wrong(name, value, "write a time such as 500ms, 20s or 2min");
    }
    return Long.parseLong(parts.group(1)) * each;
  }

  private static IllegalArgumentException wrong(String name, String value, String right) {
    return new IllegalArgumentException(PREFIX + name + " is '" + value + "': " + right);
  }
}
