#!/bin/sh
# The Python of Spark's workers in the tests. Spark puts pyspark.zip first on PYTHONPATH, and Python compiles its modules
# at each start, which takes four times as long. The process of a stream's source must start within ten seconds, a limit
# that no setting changes. So the workers import the installed PySpark.
unset PYTHONPATH
exec "$KESTREL_TESTS_PYTHON" "$@"
