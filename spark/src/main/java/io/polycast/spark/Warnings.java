package io.polycast.spark;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;

/** Warns once of each kind of trouble, which the next broadcast would only repeat. */
final class Warnings {
  private final Logger to;
  private final Set<String> said = ConcurrentHashMap.newKeySet();

  Warnings(Logger to) {
    this.to = to;
  }

  /** Warns of the first refusal of its kind; later ones are debug messages. */
  void once(Refusal refusal) {
    String message = refusal.getMessage() + "; such broadcasts go through Torrent (said once)";
    if (said.add(refusal.kind)) {
      to.warn(message);
    } else {
      to.debug(message);
    }
  }
}
