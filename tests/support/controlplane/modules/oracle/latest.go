//go:build !oldest

package main

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/cache"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/controller/daemon"
	"k8s.io/kubernetes/pkg/features"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

type (
	cycleState     = fwk.CycleState
	nodeInfo       = fwk.NodeInfo
	podInfo        = fwk.PodInfo
	podNominator   = fwk.PodNominator
	scored         = fwk.NodePluginScores
	schedulerCache = schedulercache.Cache
)

// sharedSnapshot is what plug-ins see: the snapshot of the question at hand.
type sharedSnapshot struct{ *schedulercache.Snapshot }

func newSnapshot() *schedulercache.Snapshot       { return schedulercache.NewEmptySnapshot() }
func newCache(ctx context.Context) schedulerCache { return schedulercache.New(ctx, nil, false) }

func optionsOf(ctx context.Context, of *scheduler) ([]frameworkruntime.Option, error) {
	resources := of.store.Resource().V1()
	claims := assumecache.NewAssumeCache(klog.Logger{}, resources.ResourceClaims().Informer(), "ResourceClaim", "", nil)
	slices, err := resourceslicetracker.StartTracker(ctx, resourceslicetracker.Options{
		EnableConsumableCapacity: utilfeature.DefaultFeatureGate.Enabled(features.DRAConsumableCapacity),
		SliceInformer:            resources.ResourceSlices(),
	})
	if err != nil {
		return nil, err
	}
	devices := dynamicresources.NewDRAManager(ctx, claims, slices, of.store)
	if handler, ok := devices.DeviceClassResolver().(cache.ResourceEventHandler); ok && utilfeature.DefaultFeatureGate.Enabled(features.DRAExtendedResource) {
		if _, err := resources.DeviceClasses().Informer().AddEventHandler(handler); err != nil {
			return nil, err
		}
	}
	return []frameworkruntime.Option{
		frameworkruntime.WithClientSet(&client{store: of.store}),
		frameworkruntime.WithInformerFactory(of.store),
		frameworkruntime.WithSharedDRAManager(devices),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(of.store.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithSnapshotSharedLister(of.shared),
		frameworkruntime.WithPodNominator(of.nominator),
		frameworkruntime.WithParallelism(1),
	}, nil
}

// binder is a plug-in that writes when a pod is bound.
type binder struct {
	name   string
	plugin fwk.PreBindPlugin
}

func capturing(factory frameworkruntime.PluginFactory, binders *[]binder) frameworkruntime.PluginFactory {
	return func(ctx context.Context, arguments runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
		made, err := factory(ctx, arguments, handle)
		if err != nil {
			return nil, err
		}
		if plugin, ok := made.(fwk.PreBindPlugin); ok {
			*binders = append(*binders, binder{made.Name(), plugin})
		}
		return made, nil
	}
}

// bind lets the plug-in write what it reserved, and says what failed.
func (b *binder) bind(ctx context.Context, state cycleState, pod *corev1.Pod, node string) string {
	if b.name == names.VolumeBinding {
		// It writes, and then waits for the PV controller, which is played here: there is nothing to wait for.
		over, cancel := context.WithCancel(ctx)
		cancel()
		b.plugin.PreBind(over, state, pod, node)
		return ""
	}
	if status := b.plugin.PreBind(ctx, state, pod, node); !status.IsSuccess() {
		return status.Message()
	}
	return ""
}

func preFilter(w *world, state cycleState, pod *corev1.Pod) (func(string) bool, *refusal) {
	found, status, _ := w.framework.RunPreFilterPlugins(w.ctx, state, pod)
	if !status.IsSuccess() {
		return nil, &refusal{status.Plugin(), status.Message()}
	}
	return func(node string) bool { return found.AllNodes() || found.NodeNames.Has(node) }, nil
}

func shouldRun(node *corev1.Node, set *appsv1.DaemonSet) (bool, bool) {
	return daemon.NodeShouldRunDaemonPod(klog.Logger{}, node, set)
}

// labelKeys puts what matchLabelKeys and mismatchLabelKeys name into the selectors, as the API server does with a new pod.
func labelKeys(pod *corev1.Pod) {
	merge := func(selector *metav1.LabelSelector, keys []string, operator metav1.LabelSelectorOperator) {
		for _, key := range keys {
			if value, ok := pod.Labels[key]; ok && selector != nil {
				selector.MatchExpressions = append(selector.MatchExpressions,
					metav1.LabelSelectorRequirement{Key: key, Operator: operator, Values: []string{value}})
			}
		}
	}
	for _, term := range affinityTerms(pod) {
		merge(term.LabelSelector, term.MatchLabelKeys, metav1.LabelSelectorOpIn)
		merge(term.LabelSelector, term.MismatchLabelKeys, metav1.LabelSelectorOpNotIn)
	}
	for at := range pod.Spec.TopologySpreadConstraints {
		each := &pod.Spec.TopologySpreadConstraints[at]
		merge(each.LabelSelector, each.MatchLabelKeys, metav1.LabelSelectorOpIn)
	}
}

// answerable is nil: this release reads all that a question may have.
func answerable(*question) error { return nil }

// claims makes the ResourceClaims of a pod's templates, as the controller of these does.
func (a *admission) claims(pod *corev1.Pod) {
	for _, each := range pod.Spec.ResourceClaims {
		if each.ResourceClaimTemplateName == nil || named(pod, each.Name) {
			continue
		}
		template, ok := a.templates[pod.Namespace+"/"+*each.ResourceClaimTemplateName].(*resourcev1.ResourceClaimTemplate)
		if !ok {
			continue
		}
		claim := &resourcev1.ResourceClaim{
			TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
			ObjectMeta: a.owned(pod, pod.Name+"-"+each.Name),
			Spec:       template.Spec.Spec,
		}
		pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses,
			corev1.PodResourceClaimStatus{Name: each.Name, ResourceClaimName: &claim.Name})
		if !a.given["ResourceClaim "+key(claim)] {
			a.made = append(a.made, claim)
		}
	}
}

func named(pod *corev1.Pod, entry string) bool {
	for _, each := range pod.Status.ResourceClaimStatuses {
		if each.Name == entry {
			return true
		}
	}
	return false
}

type resourceClient struct {
	resourceclient.ResourceV1Interface
	store *store
}

type resourceClaims struct {
	resourceclient.ResourceClaimInterface
	store *store
}

func (c *client) ResourceV1() resourceclient.ResourceV1Interface {
	return &resourceClient{store: c.store}
}

func (c *resourceClient) ResourceClaims(string) resourceclient.ResourceClaimInterface {
	return &resourceClaims{store: c.store}
}

func (c *resourceClaims) Update(_ context.Context, claim *resourcev1.ResourceClaim, _ metav1.UpdateOptions) (*resourcev1.ResourceClaim, error) {
	return c.store.put(claim).(*resourcev1.ResourceClaim), nil
}

func (c *resourceClaims) UpdateStatus(_ context.Context, claim *resourcev1.ResourceClaim, _ metav1.UpdateOptions) (*resourcev1.ResourceClaim, error) {
	return c.store.put(claim).(*resourcev1.ResourceClaim), nil
}
