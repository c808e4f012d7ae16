"""A job that knows nothing of Polycast: what it broadcasts is large, and what it computes depends on every byte of that.

Prints one line `RESULT {..}`: the same with every kind of broadcast.
"""

import hashlib
import json
import random
import sys

from pyspark.ml.clustering import LDA
from pyspark.ml.feature import CountVectorizer
from pyspark.mllib.feature import Word2Vec
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


def word2vec(sc):
    """Two models are broadcast in each iteration. With two partitions no sum depends on who is first."""
    sentences = sc.parallelize(words(2_000, 2), 2)
    model = Word2Vec().setVectorSize(50).setNumPartitions(2).setNumIterations(2).setMinCount(1).setSeed(7).fit(sentences)
    vectors = {word: list(vector) for word, vector in model.getVectors().items()}
    return digest(number for word in sorted(vectors) for number in vectors[word])


def lda(spark):
    """The online optimizer broadcasts the topics for each batch."""
    documents = spark.createDataFrame([(sentence,) for sentence in words(400, 3)], ["words"]).repartition(2)
    counted = CountVectorizer(inputCol="words", outputCol="features", vocabSize=3_000).fit(documents).transform(documents)
    model = LDA(k=30, maxIter=3, seed=5, optimizer="online").fit(counted.select("features"))
    return digest(model.topicsMatrix().toArray().flatten().tolist())


def main():
    spark = SparkSession.builder.appName("job").getOrCreate()
    wanted = sys.argv[1:] or ["python", "join", "word2vec", "lda"]
    done = {
        "python": lambda: python_value(spark.sparkContext),
        "join": lambda: star_join(spark),
        "word2vec": lambda: word2vec(spark.sparkContext),
        "lda": lambda: lda(spark),
    }
    results = {name: done[name]() for name in wanted}
    print("RESULT " + json.dumps(results), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
