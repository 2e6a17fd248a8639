"""Fleets and overrides that several studies share; numbers as in inputs/sim/cleave-256.yaml unless said."""

PUBLISHED = "inputs/sim/cleave-256.yaml"
WIDE = {"server.nic_out": "unlimited", "server.nic_in": "unlimited"}
HEADLINE = {"server.nic_out": "100 Gbit/s", "server.nic_in": "100 Gbit/s"}
SMALL = ["1 GB", "3 GB"]
SEEDS = [42, 43, 44, 45, 46]

RIVALS = ["dtfm", "dtfm-plus", "asteroid", "asteroid-plus", "swarm", "megatron", "fsdp", "confidant", "galaxy", "summa",
          "tensor-parallel", "data-parallel"]
OTHER_ALGORITHMS = ["fusionllm", "local-steps", "progfed"]  # they change the training
EVERY = ["cleave", "cleave-paper", *RIVALS, *OTHER_ALGORITHMS, "cloud-gpu"]
# Seconds to minutes of a core a point.
SLOW = ["cleave-paper", "dtfm", "dtfm-plus", "asteroid", "asteroid-plus"]


def edge(count=256, memory=SMALL, compute=("5 TFLOP/s", "7 TFLOP/s"), down=("10 MB/s", "100 MB/s"), up=("5 MB/s", "10 MB/s"),
         name="edge"):
    words = [list(v) if isinstance(v, tuple) else v for v in (compute, memory, down, up)]
    return {"name": name, "count": count, "compute": words[0], "memory": words[1], "downlink": words[2], "uplink": words[3],
            "latency": "0 ms"}


def fleet(*groups, **more):
    return {"fleet.devices": list(groups), **more}
