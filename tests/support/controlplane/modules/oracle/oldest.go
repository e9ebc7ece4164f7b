//go:build oldest

package main

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/daemon"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
)

type (
	cycleState     = *framework.CycleState
	nodeInfo       = *framework.NodeInfo
	podInfo        = *framework.PodInfo
	podNominator   = framework.PodNominator
	scored         = framework.NodePluginScores
	schedulerCache = *nodeCache
)

// sharedSnapshot is what plug-ins see: the snapshot of the question at hand.
type sharedSnapshot struct{ *Snapshot }

// Snapshot has the nodes as plug-ins see them. The scheduler's own is in an internal package of this release.
type Snapshot struct {
	nodes, affinity, antiAffinity []*framework.NodeInfo
	claims                        sets.Set[string]
}

func newSnapshot() *Snapshot { return &Snapshot{} }

func (s *Snapshot) NodeInfos() framework.NodeInfoLister       { return s }
func (s *Snapshot) StorageInfos() framework.StorageInfoLister { return s }
func (s *Snapshot) IsPVCUsedByPods(key string) bool           { return s.claims.Has(key) }
func (s *Snapshot) List() ([]*framework.NodeInfo, error)      { return s.nodes, nil }

func (s *Snapshot) HavePodsWithAffinityList() ([]*framework.NodeInfo, error) { return s.affinity, nil }

func (s *Snapshot) HavePodsWithRequiredAntiAffinityList() ([]*framework.NodeInfo, error) {
	return s.antiAffinity, nil
}

func (s *Snapshot) Get(name string) (*framework.NodeInfo, error) {
	for _, each := range s.nodes {
		if each.Node().Name == name {
			return each, nil
		}
	}
	return nil, fmt.Errorf("there is no node %q", name)
}

// nodeCache keeps nodes with their pods. Pods of nodes that are not there are in it, and in no snapshot.
type nodeCache struct {
	order []string
	nodes map[string]*framework.NodeInfo
}

func newCache(context.Context) *nodeCache {
	return &nodeCache{nodes: map[string]*framework.NodeInfo{}}
}

func (c *nodeCache) named(name string) *framework.NodeInfo {
	if c.nodes[name] == nil {
		c.nodes[name] = framework.NewNodeInfo()
		c.order = append(c.order, name)
	}
	return c.nodes[name]
}

func (c *nodeCache) AddNode(_ klog.Logger, node *corev1.Node) { c.named(node.Name).SetNode(node) }

func (c *nodeCache) AddPod(_ klog.Logger, pod *corev1.Pod) error {
	c.named(pod.Spec.NodeName).AddPod(pod)
	return nil
}

func (c *nodeCache) RemovePod(logger klog.Logger, pod *corev1.Pod) error {
	return c.named(pod.Spec.NodeName).RemovePod(logger, pod)
}

func (c *nodeCache) RemoveNode(_ klog.Logger, node *corev1.Node) error {
	c.named(node.Name).RemoveNode()
	return nil
}

func (c *nodeCache) UpdateSnapshot(_ klog.Logger, seen *Snapshot) error {
	*seen = Snapshot{claims: sets.New[string]()}
	for _, name := range c.order {
		each := c.nodes[name]
		if each.Node() == nil {
			continue
		}
		each = each.Snapshot()
		seen.nodes = append(seen.nodes, each)
		if len(each.PodsWithAffinity) > 0 {
			seen.affinity = append(seen.affinity, each)
		}
		if len(each.PodsWithRequiredAntiAffinity) > 0 {
			seen.antiAffinity = append(seen.antiAffinity, each)
		}
		for key := range each.PVCRefCounts {
			seen.claims.Insert(key)
		}
	}
	return nil
}

func optionsOf(_ context.Context, of *scheduler) ([]frameworkruntime.Option, error) {
	return []frameworkruntime.Option{
		frameworkruntime.WithClientSet(&client{store: of.store}),
		frameworkruntime.WithInformerFactory(of.store),
		frameworkruntime.WithSnapshotSharedLister(of.shared),
		frameworkruntime.WithPodNominator(of.nominator),
		frameworkruntime.WithParallelism(1),
	}, nil
}

// binder is a plug-in that writes when a pod is bound.
type binder struct {
	name   string
	plugin framework.PreBindPlugin
}

func capturing(factory frameworkruntime.PluginFactory, binders *[]binder) frameworkruntime.PluginFactory {
	return func(ctx context.Context, arguments runtime.Object, handle framework.Handle) (framework.Plugin, error) {
		made, err := factory(ctx, arguments, handle)
		if err != nil {
			return nil, err
		}
		if plugin, ok := made.(framework.PreBindPlugin); ok && made.Name() == names.VolumeBinding {
			*binders = append(*binders, binder{made.Name(), plugin})
		}
		return made, nil
	}
}

// bind lets the plug-in write what it reserved. It then waits for the PV controller, which is played here: there is nothing
// to wait for.
func (b *binder) bind(ctx context.Context, state cycleState, pod *corev1.Pod, node string) string {
	over, cancel := context.WithCancel(ctx)
	cancel()
	b.plugin.PreBind(over, state, pod, node)
	return ""
}

func preFilter(w *world, state cycleState, pod *corev1.Pod) (func(string) bool, *refusal) {
	found, status := w.framework.RunPreFilterPlugins(w.ctx, state, pod)
	if !status.IsSuccess() {
		return nil, &refusal{status.Plugin(), status.Message()}
	}
	return func(node string) bool { return found.AllNodes() || found.NodeNames.Has(node) }, nil
}

func shouldRun(node *corev1.Node, set *appsv1.DaemonSet) (bool, bool) {
	return daemon.NodeShouldRunDaemonPod(node, set)
}

// labelKeys drops what this release's API server does not know yet. The plug-in itself reads those of spreads.
func labelKeys(pod *corev1.Pod) {
	for _, term := range affinityTerms(pod) {
		term.MatchLabelKeys, term.MismatchLabelKeys = nil, nil
	}
}

// answerable says what this release has no plug-in for.
func answerable(asked *question) error {
	for _, each := range append(append([]*placement(nil), asked.placements...), asked.unplaced...) {
		if len(each.pod.Spec.ResourceClaims) > 0 {
			return fmt.Errorf("%s has resource claims, which are for the newer release alone", each.name())
		}
	}
	return nil
}

// claims makes nothing: this release's DynamicResources is another plug-in.
func (a *admission) claims(*corev1.Pod) {}
