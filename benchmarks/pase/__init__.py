"""Networks that papers split, by a cost model that counts: where published optima are reproduced.

PaSE (Elango, 2021, arXiv 2407.04001) prices a layer's configuration by how many parts each of its
dimensions has, without saying which device holds which part. Such a split cannot be run, so
``gnnplace shard`` does not answer by it; it answers by the tables of splits that run.

    python -m benchmarks.pase rnnlm --devices 16 -o rnnlm.json     words, parts, rivals; its tables
    gnnplace shard rnnlm.json --memory-limit 4e9                   what a table can be asked
    python -m benchmarks.pase.comparison                           rows of all networks and ways
"""
