#!/bin/sh
# What made the network of `--placer gnn`, stage by stage: each goes on from the moving average at
# the end of the one before, on other problems. Validation curves: trainers/gnn/stage-N.log.csv.
# The third stage goes on with the problems and labels of the second. Start it in the checkout.
#
# The code grew on the way: clusters, moves of labels and draws by cluster were there from the start;
# the greedy decode's own advantage came after 1,720 steps of the first stage, weights of labels and
# equal devices that count together in the second, the number of devices and `even_use` with the
# fourth. Today's code has all of them from the first step. data_sets/varied had 61 of its 117 graphs
# (none of fractal, highway, tree_lstm and speech).
set -e
stage() { # number, further options
    number=$1; shift
    gnnplace train fit --config trainers/gnn/pretrain.yaml --trainer.default_root_dir="runs/gnn/$number" "$@"
}
stage 1 --data.datasets='[networks]' --data.captured=0.7 --data.ops='[20, 200]' --data.large=0.08 \
    --data.pool=1920 --model.greedy=0.5 --model.steps=5000 --model.learning_rate=1e-3 --trainer.max_epochs=40
stage 2 --data.datasets='[networks]' --data.captured=0.5 --data.large=0.08 --data.pool=1920 \
    --data.seed=1 --model.steps=1700 --model.learning_rate=5e-4 --trainer.max_epochs=22 \
    --model.start=runs/gnn/1/policy
stage 3 --data.datasets='[networks]' --data.captured=0.5 --data.large=0.08 --data.pool=1920 \
    --data.seed=1 --model.steps=3300 --model.learning_rate=5e-4 --trainer.max_epochs=41 \
    --model.gradient=0.5 --model.temperature=0.4 --ckpt_path=runs/gnn/2/checkpoints/last.ckpt
stage 4 --data.datasets='[networks]' --data.captured=0.5 --data.large=0.08 --data.pool=1920 \
    --data.seed=2 --model.steps=2400 --trainer.max_epochs=30 --model.start=runs/gnn/3/policy-last
stage 5 --data.datasets='[networks]' --data.captured=0.6 --data.seed=3 --model.steps=8000 \
    --trainer.max_epochs=45 --model.start=runs/gnn/4/policy-last
stage 6 --data.seed=4 --model.steps=6000 --trainer.max_epochs=75 --model.start=runs/gnn/5/policy-last
