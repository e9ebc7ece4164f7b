"""Which commands of the documents are run, and where: every command of every page is either played by a test or in the
one list of those that are not, with the reason."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from tests.support.commands import ROOT, commands, documents

WITHOUT_CLUSTER = ("docs/guides/connect.md", "docs/guides/ec2.md", "docs/guides/five-minutes.md")
"""Pages that `tests/documents/test_commands.py` plays."""
WITH_CONTROL_PLANE = (
    "docs/guides/faults-and-replay.md",
    "docs/guides/karpenter.md",
    "docs/guides/kubectl.md",
    "docs/guides/plan.md",
    "docs/guides/provisioning-requests.md",
    "docs/guides/report.md",
    "docs/guides/try-without-a-cloud.md",
    "docs/reference/resource-claims.md",
    "docs/reference/scale-down.md",
    "docs/reference/volumes.md",
)
"""Pages that `tests/controlplane/test_documents.py` plays, with kubectl."""
PLAYED_ELSEWHERE: Mapping[str, str] = {
    "docs/guides/in-a-cluster.md": "tests/controlplane/test_in_a_cluster.py",
    "docs/guides/tracing.md": "tests/controlplane/test_live_one_id.py",
    "docs/guides/try-slack.md": "tests/controlplane/test_try_slack.py",
}
"""Pages with a test of their own, which reads their commands."""

NOT_RUN: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "it is what runs the tests, or is run by CI beside them": {
        "README.md": ("make run", "make test"),
        "docs/guides/try-without-a-cloud.md": ("make run",),
        "CONTRIBUTING.md": (
            "make venv",
            "make lint",
            "make test",
            "make test-cluster",
            "make test-long",
            "make native",
            "make docs",
        ),
    },
    "it publishes": {"CONTRIBUTING.md": ("make release VERSION=X.Y.Z && git push origin vX.Y.Z",)},
    "it takes minutes, on a machine that does nothing else": {
        "docs/guides/development.md": (
            "taskset --cpu-list 0 make test PYTEST_ARGS=--numprocesses auto --random-order",
            "make fuzz",
            ".venv/bin/python -m tests.api.decoders.fuzz build/fuzz/crash-…",
            ".venv/bin/python -m bench.hunt --seconds 600 --into build/hunt",
            ".venv/bin/python -m bench.hunt --replay build/hunt/*.json",
            ".venv/bin/python -m tests.oracle < questions.jsonl",
        ),
        "docs/reference/performance.md": (
            "make bench",
            "make bench BENCH_ARGS=--markdown docs/reference/performance.md",
            ".venv/bin/python -m bench.planner --case openb-default --budget 2",
            ".venv/bin/python -m bench.planner --workload pods.csv",
        ),
        "docs/reference/reliability.md": (
            ".venv/bin/python -m bench.campaign --markdown docs/reference/reliability.md",
            ".venv/bin/python -m bench.campaign --only fleet --increments 500",
        ),
    },
    "it needs Docker": {
        "docs/guides/in-a-cluster.md": (
            "docker build -t registry.example/cagrpc:TAG --build-arg VERSION=$(.venv/bin/python -m setuptools_scm) .",
            "docker push registry.example/cagrpc:TAG",
        ),
    },
    "it makes a cluster of containers": {
        "docs/guides/try-without-a-cloud.md": ("kind create cluster", "kwokctl create cluster"),
    },
    "it ends by Ctrl-C only": {"docs/guides/try-without-a-cloud.md": ("kubectl get nodes --watch",)},
    "it needs an AWS account": {
        "docs/guides/ec2.md": (
            "aws iam create-policy --policy-name cagrpc-prod --policy-document file://policy.json",
            (
                "cagrpc catalogue aws --region eu-central-1 --instance-type m7i.* --instance-type p5.48xlarge --output"
                " catalogue.csv"
            ),
            (
                "aws ec2 describe-instances --filters Name=tag:cagrpc.io/cluster,Values=prod --query"
                " Reservations[].Instances[].[InstanceId,InstanceType,State.Name] --output text"
            ),
        ),
    },
    "it needs a pod that runs, and so a kubelet (tests/controlplane/test_kubectl.py forwards a port)": {
        "docs/guides/ec2.md": (
            "helm install cagrpc deploy/chart --namespace cagrpc --values values.yaml",
            "kubectl -n cagrpc exec deploy/cagrpc -- cagrpc status",
            "kubectl apply -f gang.yaml",
            "kubectl get increments",
        ),
        "docs/guides/in-a-cluster.md": (
            "kubectl --namespace cagrpc port-forward service/cagrpc 8088 &",
            (
                "CAGRPC_TOKEN=$(kubectl --namespace cagrpc create token reader) cagrpc status --http https://localhost:8088"
                " --http-ca certs/ca.crt"
            ),
        ),
        "docs/guides/kubectl.md": (
            "kubectl cagrpc status --watch",
            "kubectl cagrpc explain provisioningrequest train --namespace team-a",
        ),
        "docs/guides/tracing.md": (
            'kubectl -n cagrpc logs deployment/cagrpc | jq -c select(.increment == "3f9a1c20be47")',
        ),
        "docs/guides/page.md": (
            "kubectl -n cagrpc port-forward service/cagrpc 8088",
            "kubectl create token NAME",
        ),
    },
    "it needs a cluster-autoscaler with a cloud of its own (tests/packaging/test_chart_modes.py renders it)": {
        "docs/guides/three-steps.md": (
            "kubectl create namespace cagrpc",
            "kubectl label namespace cagrpc pod-security.kubernetes.io/enforce=restricted",
            (
                "helm install cagrpc deploy/chart --namespace cagrpc --values deploy/values/shadow.yaml --set"
                " certManager.enabled=true"
            ),
            "kubectl --namespace cagrpc get secret cagrpc-tls -o jsonpath={.data.ca\\.crt} | base64 -d > ca.crt",
            "kubectl --namespace kube-system create configmap cagrpc-ca --from-file=ca.crt",
            "kubectl cagrpc status",
            "kubectl cagrpc explain --last",
            (
                "helm upgrade cagrpc deploy/chart --namespace cagrpc --values deploy/values/expander.yaml --values"
                " values.yaml --set certManager.enabled=true"
            ),
            (
                "helm upgrade cagrpc deploy/chart --namespace cagrpc --values deploy/values/karpenter.yaml --set"
                " certManager.enabled=true"
            ),
        ),
    },
    "it needs a cluster, which tests/offline/test_discovery.py plays": {
        "docs/guides/connect.md": ("cagrpc config init --kubeconfig ~/.kube/config --output first.yaml",),
    },
    "it needs a cluster (tests/offline/test_observing.py), or what one has kept (tests/cli/test_observe.py)": {
        "docs/reference/episodes.md": (
            "cagrpc observe --kubeconfig ~/.kube/config --for 8h --to report.html report.md",
            "kubectl -n cagrpc get configmap cagrpc-episodes -o jsonpath={.data.episodes} > shadow.json",
            "cagrpc observe --from shadow.json --to report.md",
            "cagrpc observe --from shadow.json --plan-again",
        ),
    },
    "it needs Karpenter or Cluster API in the cluster, with which tests/controlplane/test_karpenter*.py and"
    " test_cluster_api*.py do the same": {
        "docs/guides/karpenter.md": (
            "kubectl get nodepools -o yaml > nodepools-before.yaml",
            "cagrpc config import node-pools --kubeconfig ~/.kube/config > sections.yaml",
            (
                'kubectl patch nodepool gpu --type merge -p {"spec": {"limits": {"cpu": "0"}, "disruption":'
                ' {"consolidateAfter": "Never", "budgets": [{"nodes": "0"}]}}}'
            ),
            "kubectl apply -f gang.yaml",
            "kubectl get nodeclaims -l cagrpc.io/fleet=cagrpc",
        ),
        "docs/guides/kubectl.md": ("kubectl cagrpc plan",),
        "docs/guides/cluster-api.md": (
            (
                "cagrpc config import machine-deployments --kubeconfig management.kubeconfig --namespace clusters"
                " --cluster prod > cagrpc.yaml"
            ),
            "cagrpc serve --config cagrpc.yaml",
            "kubectl get increments",
            "kubectl --kubeconfig management.kubeconfig -n clusters get machines -l cagrpc.io/fleet=cagrpc",
        ),
    },
}
"""Why, on which page, and the command without its comment and quotes. What it names is checked as far as that goes."""


def plain(command: str) -> str:
    """Return how a command is named in `NOT_RUN`."""
    return " ".join(" ".join(shlex.split(command.replace("\\\n", " "), comments=True)).split())


def not_run(page: str) -> set[str]:
    """Return the plain commands of a page that are not run."""
    return {each for pages in NOT_RUN.values() for each in pages.get(page, ())}


def pages() -> dict[str, list[str]]:
    """Return the commands of each page that has any."""
    found = {str(path.relative_to(ROOT)): commands(path.read_text()) for path in documents()}
    return {page: written for page, written in found.items() if written}
