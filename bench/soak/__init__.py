"""Half of full load for a long time: does memory stay, does latency drift? (`make soak`)

writers.py   a process of append sessions (HTTP/1.1, HTTP/2) and unary appends: at full speed, paced
readers.py   a process of followers (SSE and S2S) of one stream, its writer, and catch-up reads
client.py    such processes, and their windows: what they saw since they were last asked
trend.py     a line through samples, its error, and the verdict

Writers and readers live in processes of their own, keep nothing from one window to the next, and
say what CPU and memory they take themselves. Streams keep their records for a minute, so that
there is a steady state to look for: what is kept longer takes memory for its place, rightly.
"""
