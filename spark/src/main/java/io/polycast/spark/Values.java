package io.polycast.spark;

import org.apache.spark.SparkEnv;
import org.apache.spark.SparkConf;
import org.apache.spark.io.CompressionCodec;
import org.apache.spark.io.CompressionCodec$;
import org.apache.spark.serializer.DeserializationStream;
import org.apache.spark.serializer.SerializationStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.ObjectInputStream;
import java.io.ObjectOutputStream;
import java.io.ObjectStreamClass;
import java.io.OutputStream;
import java.nio.file.Path;
import scala.reflect.ClassTag;

/**
 * Values as bytes, in the same form as Torrent's: Spark's serializer, and its codec if broadcasts are
 * compressed.
 */
final class Values {
  private static final int BUFFER = 1 << 20;

  private Values() {}

  static <T> void write(T value, ClassTag<T> tag, OutputStream out) {
    SparkEnv env = SparkEnv.get();
    OutputStream buffered = new BufferedOutputStream(out, BUFFER);
    OutputStream packed = compresses(env.conf()) ? codec(env.conf()).compressedOutputStream(buffered) : buffered;
    SerializationStream stream = env.serializer().newInstance().serializeStream(packed);
    stream.writeObject(value, tag);
    stream.close();
  }

  /**
   * Reads the value with these digests, and no other. The file is read and not mapped: a mapping stays in
   * memory until the garbage collector runs, even after the agent has removed the object. Either way, all
   * executors of the host share the file's pages.
   */
  static <T> T read(Path file, long length, byte[] digests, ClassTag<T> tag) throws IOException {
    SparkEnv env = SparkEnv.get();
    return Pieces.read(file, length, digests, in -> {
      InputStream unpacked = compresses(env.conf()) ? codec(env.conf()).compressedInputStream(in) : in;
      DeserializationStream stream = env.serializer().newInstance().deserializeStream(unpacked);
      T value = stream.readObject(tag);
      stream.close();
      return value;
    });
  }

  private static boolean compresses(SparkConf conf) {
    return conf.getBoolean("spark.broadcast.compress", true);
  }

  private static CompressionCodec codec(SparkConf conf) {
    return CompressionCodec$.MODULE$.createCodec(conf);
  }

  /**
   * Returns a small object of Spark as bytes: messages between driver and executors may only contain classes
   * that both know.
   */
  static byte[] pack(Object object) throws IOException {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (ObjectOutputStream out = new ObjectOutputStream(bytes)) {
      out.writeObject(object);
    }
    return bytes.toByteArray();
  }

  static Object unpack(byte[] bytes) throws IOException, ClassNotFoundException {
    try (ObjectInputStream in = new Reader(new ByteArrayInputStream(bytes))) {
      return in.readObject();
    }
  }

  /** Finds the classes of the application, as tasks do. */
  private static final class Reader extends ObjectInputStream {
    Reader(InputStream in) throws IOException {
      super(in);
    }

    @Override
    protected Class<?> resolveClass(ObjectStreamClass wanted) throws IOException, ClassNotFoundException {
      ClassLoader loader = Thread.currentThread().getContextClassLoader();
      try {
        return Class.forName(wanted.getName(), false, loader == null ? Values.class.getClassLoader() : loader);
      } catch (ClassNotFoundException primitive) {
        return super.resolveClass(wanted);
      }
    }
  }
}
