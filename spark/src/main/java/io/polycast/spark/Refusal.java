package io.polycast.spark;

/** Reason why a value does not go through Polycast: a kind for programs, and one sentence for people. */
final class Refusal extends Exception {
  private static final long serialVersionUID = 1L;

  /** The agent does not answer. */
  static final String NO_AGENT = "no-agent";
  /** The agent does not know this process, because the agent has restarted. */
  static final String NOT_REGISTERED = "not-registered";
  /** The agent has another protocol version. */
  static final String VERSION = "version";
  /** The value does not fit into the store. */
  static final String STORE_FULL = "store-full";
  /** The agent is not connected to a manager. */
  static final String NO_MANAGER = "no-manager";
  /** Spark encrypts, but the settings do not promise that the agents do. */
  static final String ENCRYPTION = "encryption";
  /** Nothing has arrived for too long. */
  static final String LATE = "late";
  /** An agent has something else in the place of a value. */
  static final String REPLACED = "replaced";
  /** A file could not be written or read. */
  static final String FILE = "file";

  final String kind;

  Refusal(String kind, String message) {
    super(message);
    this.kind = kind;
  }

  Refusal(String kind, String message, Throwable cause) {
    super(message, cause);
    this.kind = kind;
  }
}
