#!/bin/sh
# What made the two networks of trainers/gnn/twins, which are alike but for the encoder: three rounds
# of messages and pooling, or none of them. The same problems, seed and number of steps; each is the
# moving average at the end. Validation curves are beside them. Start it in the checkout.
set -e
twin() { # rounds, name
    gnnplace train fit --config trainers/gnn/pretrain.yaml --seed_everything=10 --data.seed=10 \
        --data.tight=0.25 --model.layers="$1" --model.steps=4000 --trainer.max_epochs=50 \
        --trainer.default_root_dir="runs/gnn/twin-$2"
    mkdir -p "trainers/gnn/twins/$2"
    cp "runs/gnn/twin-$2/policy-last/config.json" "runs/gnn/twin-$2/policy-last/model.safetensors" \
        "trainers/gnn/twins/$2"
}
twin 3 messages
twin 0 none
