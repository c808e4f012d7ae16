/** The job of job.py in Scala: it knows nothing of Polycast, its broadcasts are large, and its results depend
  * on every byte of them.
  *
  * Prints one line `RESULT {..}`: the same with every kind of broadcast.
  */
import java.security.MessageDigest

import scala.util.Random

import org.apache.spark.ml.clustering.LDA
import org.apache.spark.ml.feature.{CountVectorizer, Word2Vec}
import org.apache.spark.ml.linalg.Vector
import org.apache.spark.sql.{DataFrame, SparkSession}
import org.apache.spark.sql.functions._

object Job {
  /** Sentences of made-up words, the same in every run. */
  def words(count: Int, seed: Long): Seq[Seq[String]] = {
    val draw = new Random(seed)
    Seq.fill(count, 20)(s"word${(3000 * math.pow(draw.nextDouble(), 2)).toInt}")
  }

  def digest(text: String): String =
    MessageDigest.getInstance("SHA-256").digest(text.getBytes("UTF-8")).take(8).map("%02x".format(_)).mkString

  /** Broadcasts an array of 8 MB and a map, and checks that unpersisting and destroying them does no harm. */
  def values(spark: SparkSession): String = {
    val bytes = new Array[Byte](8000000)
    new Random(1).nextBytes(bytes)
    val array = spark.sparkContext.broadcast(bytes)
    val table = spark.sparkContext.broadcast((0 until 50000).map(i => s"key-$i" -> i.toLong * i).toMap)
    val read = spark.sparkContext.parallelize(0 until 4, 4).map { part =>
      val sum = MessageDigest.getInstance("SHA-256").digest(array.value.drop(part)).map("%02x".format(_)).mkString
      s"$sum ${table.value.values.map(_ + part).sum}"
    }
    val first = read.collect().mkString(",")
    array.unpersist(blocking = true)
    require(read.collect().mkString(",") == first)
    array.destroy()
    table.destroy()
    digest(first)
  }

  /** Joins facts with two broadcast tables, as TPC-H's queries do. */
  def join(spark: SparkSession): String = {
    val facts = spark.range(200000).select((col("id") % 20000).as("part"), (col("id") % 25).as("nation"), col("id"))
    val parts = spark.range(20000).select(col("id").as("part"), sha2(col("id").cast("string"), 256).as("name"))
    val nations = spark.range(25).select(col("id").as("nation"), concat(lit("nation-"), col("id")).as("country"))
    val joined = facts.join(broadcast(parts), "part").join(broadcast(nations), "nation")
    val rows = joined.groupBy("country").agg(count("*"), max("name"), sum("id")).orderBy("country").collect()
    digest(rows.mkString(","))
  }

  /** Sentences in one partition: with several, word counts break ties by the order of arrival. */
  def texts(spark: SparkSession, sentences: Seq[Seq[String]]): DataFrame =
    spark.createDataFrame(spark.sparkContext.parallelize(sentences.map(Tuple1(_)), 1)).toDF("words")

  /** Broadcasts two models in each iteration. */
  def word2vec(spark: SparkSession): String = {
    val learns = new Word2Vec().setVectorSize(50).setNumPartitions(2).setMaxIter(2).setMinCount(1).setSeed(7)
    val model = learns.setInputCol("words").setOutputCol("vector").fit(texts(spark, words(1000, 2)))
    val vectors = model.getVectors.orderBy("word").collect()
    digest(vectors.map(row => row.getAs[Vector]("vector").toArray.mkString(" ")).mkString(","))
  }

  /** Broadcasts the topics for each batch, as the online optimizer does. */
  def lda(spark: SparkSession): String = {
    val documents = texts(spark, words(200, 3))
    val counter = new CountVectorizer().setInputCol("words").setOutputCol("features").setVocabSize(3000)
    val counted = counter.fit(documents).transform(documents).select("features").repartition(2)
    val model = new LDA().setK(30).setMaxIter(2).setSeed(5).setOptimizer("online").fit(counted)
    digest(model.topicsMatrix.toArray.mkString(" "))
  }

  def main(arguments: Array[String]): Unit = {
    val spark = SparkSession.builder().appName("job").getOrCreate()
    val jobs = Seq("values" -> values _, "join" -> join _, "word2vec" -> word2vec _, "lda" -> lda _)
    val results = jobs.map { case (name, job) => s""""$name": "${job(spark)}"""" }
    println(results.mkString("RESULT {", ", ", "}"))
    spark.stop()
  }
}
