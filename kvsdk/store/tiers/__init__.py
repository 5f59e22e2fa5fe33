"""Places that keep entries by name, whole or not at all.

`tier` is what all of them are, `buffers` the memory that entries travel in. `memory` and `disk` are
governed by an `index`; the disk's folder is in `disk_folder`, its files in `disk_files`, the processes that
use it in `disk_owners`. `object` keeps entries in a `bucket`, whose failures `object_errors` puts into
words.
"""
