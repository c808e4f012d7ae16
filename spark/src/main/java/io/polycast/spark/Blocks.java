package io.polycast.spark;

import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.storage.BlockId;
import org.apache.spark.storage.BlockManager;
import org.apache.spark.storage.BlockResult;
import org.apache.spark.storage.BroadcastBlockId;
import org.apache.spark.storage.StorageLevel;
import scala.Option;
import scala.collection.Iterator;
import scala.reflect.ClassTag;

/**
 * An executor's values. Like Torrent's, they are kept in the block manager under the broadcast's number, so
 * they count as Spark's memory, move to its disk when memory is short, and are removed with the broadcast.
 */
final class Blocks {
  private Blocks() {}

  /** Returns the value of a broadcast, or null. */
  @SuppressWarnings("unchecked")
  static <T> T get(long id) {
    BlockManager manager = SparkEnv.get().blockManager();
    BlockId block = new BroadcastBlockId(id, "");
    Option<BlockResult> found = manager.getLocalValues(block);
    if (!found.isDefined()) {
      return null;
    }
    try {
      Iterator<?> values = found.get().data();
      return values.hasNext() ? (T) values.next() : null;
    } finally {
      manager.releaseLock(block, Option.<TaskContext>empty());
    }
  }

  static <T> void put(long id, T value, ClassTag<T> tag) {
    BlockManager manager = SparkEnv.get().blockManager();
    manager.putSingle(new BroadcastBlockId(id, ""), value, StorageLevel.MEMORY_AND_DISK(), false, tag);
  }
}
