"""The Spark of all tests, and the bucket that it can reach."""

from bourn.settings import PipelineSettings

S3_BUCKET = "pipeline"
# A task may fail twice.
LOCAL = PipelineSettings(master="local[2,3]", checkpoint_versions=2)
