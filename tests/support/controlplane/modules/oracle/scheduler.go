package main

import (
	"context"
	"fmt"
	"math/rand"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
)

type runtimeObject = runtime.Object

// scheduler is the default profile's framework, whose plug-ins see one cluster after the other.
type scheduler struct {
	framework framework.Framework
	store     *store
	shared    *sharedSnapshot
	nominator *nominator
	// Plug-ins that write what they reserved when a pod is bound.
	binders []binder
}

func newScheduler() (*scheduler, error) {
	metrics.Register()
	klog.SetLogger(klog.Logger{})
	ctx := klog.NewContext(context.Background(), klog.Logger{})
	profile, err := defaultProfile()
	if err != nil {
		return nil, err
	}
	made := &scheduler{store: newStore(), shared: &sharedSnapshot{newSnapshot()}, nominator: &nominator{}}
	registry := plugins.NewInTreeRegistry()
	for name, factory := range registry {
		registry[name] = capturing(factory, &made.binders)
	}
	options, err := optionsOf(ctx, made)
	if err != nil {
		return nil, err
	}
	made.framework, err = frameworkruntime.NewFramework(ctx, registry, profile, options...)
	return made, err
}

func defaultProfile() (*config.KubeSchedulerProfile, error) {
	var written configv1.KubeSchedulerConfiguration
	scheme.Scheme.Default(&written)
	var read config.KubeSchedulerConfiguration
	if err := scheme.Scheme.Convert(&written, &read, nil); err != nil {
		return nil, err
	}
	return &read.Profiles[0], nil
}

// world is the cluster of one question.
type world struct {
	*scheduler
	ctx    context.Context
	cache  schedulerCache
	random *rand.Rand
	bound  []binding
}

type binding struct {
	of      *placement
	pod     *corev1.Pod
	changes int
}

func (s *scheduler) open(ctx context.Context, asked *question, seed int64) (*world, error) {
	opened := &world{scheduler: s, ctx: ctx, cache: newCache(ctx), random: rand.New(rand.NewSource(seed))}
	s.shared.Snapshot = newSnapshot()
	s.nominator.waiting = map[*placement]podInfo{}
	objects := asked.objects
	for _, node := range asked.nodes {
		objects = append(objects, node)
	}
	s.store.replace(objects)
	for _, node := range asked.nodes {
		opened.cache.AddNode(klog.Logger{}, node)
	}
	known := map[string]bool{}
	for _, node := range asked.empty {
		known[node.Name] = true
	}
	for _, pod := range asked.bound {
		if known[pod.Spec.NodeName] {
			continue // it comes with the node
		}
		if err := opened.cache.AddPod(klog.Logger{}, pod); err != nil {
			return nil, err
		}
	}
	return opened, opened.look()
}

// look lets plug-ins see what the cache has.
func (w *world) look() error { return w.cache.UpdateSnapshot(klog.Logger{}, w.shared.Snapshot) }

// wait has the pods in the queue, with their nominations.
func (w *world) wait(pods []*placement) error {
	for _, each := range pods {
		if err := w.nominator.add(each); err != nil {
			return err
		}
	}
	return nil
}

// refusal is what keeps a pod from a node, or from all.
type refusal struct{ plugin, why string }

// held is why the scheduler does not even try a pod.
func held(pod *corev1.Pod) *refusal {
	if pod.DeletionTimestamp != nil {
		return &refusal{"", "it is being deleted"}
	}
	if len(pod.Spec.SchedulingGates) > 0 {
		return &refusal{"SchedulingGates", "it has scheduling gates"}
	}
	return nil
}

// cycle is one attempt to schedule a pod: PreFilter has run.
type cycle struct {
	*world
	of      *placement
	state   cycleState
	among   func(node string) bool
	refusal *refusal
}

func (w *world) cycle(of *placement) *cycle {
	made := &cycle{world: w, of: of, state: framework.NewCycleState(), refusal: held(of.pod)}
	if made.refusal == nil {
		made.among, made.refusal = preFilter(w, made.state, of.pod)
	}
	return made
}

// refused is why this node does not take the pod, or nil.
func (c *cycle) refused(node nodeInfo) *refusal {
	if c.refusal != nil {
		return c.refusal
	}
	if !c.among(node.Node().Name) {
		return &refusal{"PreFilter", "the node is not among those that the pod is tied to"}
	}
	status := c.framework.RunFilterPluginsWithNominatedPods(c.ctx, c.state, c.of.pod, node)
	if status.IsSuccess() {
		return nil
	}
	return &refusal{status.Plugin(), status.Message()}
}

// feasible are the nodes that take the pod: the one that it is nominated to, if that does.
func (c *cycle) feasible() ([]nodeInfo, *refusal) {
	all, err := c.shared.NodeInfos().List()
	if err != nil {
		return nil, &refusal{"", err.Error()}
	}
	if name := c.of.pod.Status.NominatedNodeName; name != "" {
		for _, node := range all {
			if node.Node().Name == name && c.refused(node) == nil {
				return []nodeInfo{node}, nil
			}
		}
	}
	var found []nodeInfo
	whys := map[string]bool{}
	plugins := map[string]bool{}
	for _, node := range all {
		refused := c.refused(node)
		if refused == nil {
			found = append(found, node)
			continue
		}
		whys[refused.why], plugins[refused.plugin] = true, true
	}
	if len(found) == 0 {
		return nil, &refusal{joined(plugins), joined(whys)}
	}
	return found, nil
}

// scores are what the plug-ins think of nodes that take the pod, with their weights.
func (c *cycle) scores(nodes []nodeInfo) ([]scored, *refusal) {
	if status := c.framework.RunPreScorePlugins(c.ctx, c.state, c.of.pod, nodes); !status.IsSuccess() {
		return nil, &refusal{status.Plugin(), status.Message()}
	}
	found, status := c.framework.RunScorePlugins(c.ctx, c.state, c.of.pod, nodes)
	if !status.IsSuccess() {
		return nil, &refusal{status.Plugin(), status.Message()}
	}
	return found, nil
}

// choose is the node that the scheduler takes: of those with the best score any.
func (c *cycle) choose() (nodeInfo, *refusal) {
	nodes, refused := c.feasible()
	if refused != nil {
		return nil, refused
	}
	if len(nodes) == 1 {
		return nodes[0], nil
	}
	scores, refused := c.scores(nodes)
	if refused != nil {
		return nil, refused
	}
	best, equal := 0, 1
	for at := 1; at < len(scores); at++ {
		if scores[at].TotalScore > scores[best].TotalScore {
			best, equal = at, 1
		} else if scores[at].TotalScore == scores[best].TotalScore {
			if equal++; c.random.Intn(equal) == 0 {
				best = at
			}
		}
	}
	return nodes[best], nil
}

// bind binds the pod to a node that takes it: what it takes counts for the next.
func (c *cycle) bind(node nodeInfo) *refusal {
	name := node.Node().Name
	pod := c.of.pod.DeepCopy()
	pod.Spec.NodeName = name
	changes := len(c.store.changes)
	if err := c.cache.AddPod(klog.Logger{}, pod); err != nil {
		return &refusal{"", err.Error()}
	}
	refused := c.write(pod, name)
	if refused != nil {
		c.framework.RunReservePluginsUnreserve(c.ctx, c.state, pod, name)
		c.store.undo(changes)
		_ = c.cache.RemovePod(klog.Logger{}, pod)
		_ = c.look()
		return refused
	}
	bindVolumes(c.store, changes, node.Node())
	delete(c.nominator.waiting, c.of)
	c.world.bound = append(c.world.bound, binding{c.of, pod, changes})
	if err := c.look(); err != nil {
		return &refusal{"", err.Error()}
	}
	return nil
}

func (c *cycle) write(pod *corev1.Pod, node string) *refusal {
	if status := c.framework.RunReservePluginsReserve(c.ctx, c.state, pod, node); !status.IsSuccess() {
		return &refusal{status.Plugin(), status.Message()}
	}
	for _, each := range c.binders {
		if why := each.bind(c.ctx, c.state, pod, node); why != "" {
			return &refusal{each.name, why}
		}
	}
	return nil
}

// unbind takes back all bindings but the first so many.
func (w *world) unbind(but int) error {
	for len(w.bound) > but {
		last := w.bound[len(w.bound)-1]
		w.bound = w.bound[:len(w.bound)-1]
		w.store.undo(last.changes)
		if err := w.cache.RemovePod(klog.Logger{}, last.pod); err != nil {
			return err
		}
		if err := w.nominator.add(last.of); err != nil {
			return err
		}
	}
	return w.look()
}

// nominator has the pods of the queue that are nominated to a node.
type nominator struct {
	podNominator
	waiting map[*placement]podInfo
}

func (n *nominator) add(of *placement) error {
	if of.pod.Status.NominatedNodeName == "" || held(of.pod) != nil {
		return nil
	}
	info, err := framework.NewPodInfo(of.pod)
	if err != nil {
		return fmt.Errorf("%s: %w", of.name(), err)
	}
	n.waiting[of] = info
	return nil
}

func (n *nominator) NominatedPodsForNode(name string) []podInfo {
	var found []podInfo
	for of, info := range n.waiting {
		if of.pod.Status.NominatedNodeName == name {
			found = append(found, info)
		}
	}
	return found
}

func joined(words map[string]bool) string {
	var found []string
	for word := range words {
		if word != "" {
			found = append(found, word)
		}
	}
	sort.Strings(found)
	return strings.Join(found, "; ")
}
