package io.polycast.spark;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.slf4j.Logger;

/** Says each kind of trouble once: the next broadcast would say the same. */
final class Warnings {
  private final Logger to;
  private final Set<String> said = ConcurrentHashMap.newKeySet();

  Warnings(Logger to) {
    this.to = to;
  }

  /** Warns of the first refusal of its kind; those after it are for who looks closely. */
  void once(Refusal refusal) {
    String message = refusal.getMessage() + "; such broadcasts go through Torrent (said once)";
    if (said.add(refusal.kind)) {
      to.warn(message);
    } else {
      to.debug(message);
    }
  }
}
