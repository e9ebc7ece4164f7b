"""Flags that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path

DEFAULT_CERTIFICATES_DIR = Path(".cagrpc") / "certs"


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", choices=("human", "json"), default="human", help="for people or for machines")


def add_server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--http", default="127.0.0.1:8088", metavar="HOST:PORT", help="the server's HTTP address")


def add_plan_inputs(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """The fields of `cagrpc.offline.inputs.Inputs`."""
    parser.add_argument(
        "--pods",
        type=Path,
        nargs="+",
        action="extend",
        required=required,
        default=[],
        metavar="FILE",
        help="Kubernetes YAML or JSON (Pods, Lists, workloads, PodTemplates with a ProvisioningRequest), or CSV with"
        " the columns name,cpu_milli,memory_mib,num_gpu[,count]",
    )
    parser.add_argument(
        "--catalog", type=Path, metavar="FILE", help="instance types and prices, CSV (default: the embedded catalogue)"
    )
    parser.add_argument(
        "--provisioners",
        type=Path,
        nargs="+",
        action="extend",
        required=required,
        default=[],
        metavar="FILE",
        help="Karpenter NodePools or Provisioners, YAML",
    )
    parser.add_argument(
        "--nodes",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="nodes that stand already, and the pods bound to them: Kubernetes YAML or JSON",
    )
    parser.add_argument(
        "--devices",
        type=Path,
        metavar="FILE",
        help="what DRA drivers publish of new nodes: a configuration's section devices, YAML; nodes of the same"
        " instance type with ResourceSlices among the files come first",
    )
    parser.add_argument(
        "--previous",
        type=Path,
        metavar="FILE",
        help="a plan not yet applied, as --output json printed it: planning starts from it, and of equally good plans"
        " the one that changes least is taken",
    )
    parser.add_argument(
        "--gang-label",
        metavar="KEY",
        help="pods with the same value of this label are one gang (default: scheduling.x-k8s.io/pod-group)",
    )
    parser.add_argument(
        "--scheduler",
        action="append",
        metavar="NAME",
        help="plan the pods of this scheduler (schedulerName), and of no other that is not named so; may be given again"
        " (default: default-scheduler)",
    )
    parser.add_argument(
        "--budget", default="1s", metavar="DURATION", help="how long to plan: 500ms, 1s, 2m (default: 1s)"
    )
    add_output(parser)
