"""Object storage: one port (`port`) and its adapters, which one test suite holds to one contract.

Decides when an object counts as written, which keys are legal, and which failures may pass. Never
looks inside an object, never retries a put on its own account, never shows a credential.

    port      what every bucket does; the grammar of keys
    location  "memory:", a path, "s3://…", "gs://…", "az://…" -> a bucket
    memory    a dict
    local     a directory: durable before success (disk, workers and kernel are its parts)
    remote    S3, GCS, Azure through obstore
    faults    any bucket, failing on purpose and by seed
"""
