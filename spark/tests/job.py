"""A job that knows nothing of Polycast: what it broadcasts is large, and what it computes depends on every byte of that.

Prints one line `RESULT {..}`: the same with every kind of broadcast.
"""

import hashlib
import json
import random
import sys

from pyspark.ml.clustering import LDA
from pyspark.ml.feature import CountVectorizer, Word2Vec
from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def words(count, seed):
    """Sentences of made-up words, the same in every run."""
    draw = random.Random(seed)
    known = [f"word{number}" for number in range(3_000)]
    return [[known[int(3_000 * draw.random() ** 2)] for _ in range(20)] for _ in range(count)]


def digest(numbers):
    return hashlib.sha256(json.dumps([float(number) for number in numbers]).encode()).hexdigest()[:16]


def python_value(sc):
    """A Python value of 8 MB, and whether unpersisting and destroying it does no harm."""
    value = sc.broadcast(random.Random(1).randbytes(8_000_000))
    read = sc.parallelize(range(4), 4).map(lambda part: hashlib.sha256(value.value[part:]).hexdigest())
    first = read.collect()
    value.unpersist(blocking=True)
    assert read.collect() == first
    value.destroy(blocking=True)
    return first


def star_join(spark):
    """Facts joined with three tables that are broadcast, as in TPC-H's queries."""
    facts = spark.range(200_000).select(
        (f.col("id") % 20_000).alias("part"), (f.col("id") % 5_000).alias("supplier"), (f.col("id") % 25).alias("nation"), "id"
    )
    parts = spark.range(20_000).select(f.col("id").alias("part"), f.sha2(f.col("id").cast("string"), 256).alias("name"))
    suppliers = spark.range(5_000).select(f.col("id").alias("supplier"), f.sha2(f.col("id").cast("string"), 512).alias("address"))
    nations = spark.range(25).select(f.col("id").alias("nation"), f.concat(f.lit("nation-"), "id").alias("country"))
    joined = facts.join(f.broadcast(parts), "part").join(f.broadcast(suppliers), "supplier").join(f.broadcast(nations), "nation")
    joined = joined.where(f.substring("name", 1, 1) < "8")
    rows = joined.groupBy("country").agg(f.count("*").alias("n"), f.max("address").alias("a"), f.sum("id").alias("s"))
    return [list(row) for row in rows.orderBy("country").collect()]


def texts(spark, sentences):
    """A table of sentences in one partition: who counts words in several breaks ties by what comes first."""
    return spark.createDataFrame(spark.sparkContext.parallelize([(sentence,) for sentence in sentences], 1), ["words"])


def word2vec(spark):
    """Two models are broadcast in each iteration. With two partitions no sum depends on which is first."""
    sentences = texts(spark, words(1_000, 2))
    learns = Word2Vec(vectorSize=50, numPartitions=2, maxIter=2, minCount=1, seed=7, inputCol="words", outputCol="vector")
    vectors = learns.fit(sentences).getVectors().orderBy("word").collect()
    return digest(number for row in vectors for number in row.vector)


def lda(spark):
    """The online optimizer broadcasts the topics for each batch."""
    documents = texts(spark, words(200, 3))
    counted = CountVectorizer(inputCol="words", outputCol="features", vocabSize=3_000).fit(documents).transform(documents)
    model = LDA(k=30, maxIter=2, seed=5, optimizer="online").fit(counted.select("features").repartition(2))
    return digest(model.topicsMatrix().toArray().flatten().tolist())


def main():
    spark = SparkSession.builder.appName("job").getOrCreate()
    wanted = sys.argv[1:] or ["python", "join", "word2vec", "lda"]
    done = {
        "python": lambda: python_value(spark.sparkContext),
        "join": lambda: star_join(spark),
        "word2vec": lambda: word2vec(spark),
        "lda": lambda: lda(spark),
    }
    results = {name: done[name]() for name in wanted}
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
