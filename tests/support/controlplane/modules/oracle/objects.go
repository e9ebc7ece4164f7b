package main

import (
	"encoding/json"
	"fmt"
	"sort"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/controller/daemon"
	daemonutil "k8s.io/kubernetes/pkg/controller/daemon/util"
)

const defaultClass = "storageclass.kubernetes.io/is-default-class"

// The classes that every cluster has, and what they are worth.
var systemPriorities = map[string]int32{"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}

// question is what a line asks, with all objects as they are after the API server's defaults and admission.
type question struct {
	nodes      []*corev1.Node
	empty      []*corev1.Node
	bound      []*corev1.Pod
	placements []*placement
	unplaced   []*placement
	// Pods of DaemonSets on nodes of either kind that have none yet.
	daemons []*placement
	// Nodes that were there before the plan.
	standing map[string]bool
	objects []runtime.Object
}

// placement is a pod of the queue, and the node that it is planned on, if any.
type placement struct {
	pod       *corev1.Pod
	node      string
	nominated bool
	// Equal for pods that no scheduler can tell apart.
	class string
}

func (p *placement) name() string { return p.pod.Namespace + "/" + p.pod.Name }

func read(line []byte) (*question, error) {
	var given struct {
		Nodes, Bound, Objects, Unplaced, Empty []json.RawMessage
		Standing                               []string
		Placements                             []struct {
			Pod       json.RawMessage
			Node      string
			Nominated bool
		}
	}
	if err := json.Unmarshal(line, &given); err != nil {
		return nil, err
	}
	found := &question{}
	for at, raw := range given.Objects {
		object, err := decoded(raw, schema.GroupVersionKind{})
		if runtime.IsNotRegisteredError(err) {
			continue // the scheduler reads nothing of it
		}
		if err != nil {
			return nil, fmt.Errorf("objects[%d]: %w", at, err)
		}
		found.objects = append(found.objects, object)
	}
	admission := newAdmission(found.objects)
	var err error
	if found.nodes, err = nodes("nodes", given.Nodes); err != nil {
		return nil, err
	}
	if found.empty, err = nodes("empty", given.Empty); err != nil {
		return nil, err
	}
	admitted := func(list string, at int, raw json.RawMessage) (*corev1.Pod, error) {
		object, err := decoded(raw, corev1.SchemeGroupVersion.WithKind("Pod"))
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", list, at, err)
		}
		pod, ok := object.(*corev1.Pod)
		if !ok {
			return nil, fmt.Errorf("%s[%d]: is a %T and no pod", list, at, object)
		}
		if pod.Namespace == "" {
			pod.Namespace = corev1.NamespaceDefault
		}
		if pod.UID == "" {
			pod.UID = types.UID(pod.Namespace + "/" + pod.Name)
		}
		admission.admit(pod)
		return pod, nil
	}
	for at, raw := range given.Bound {
		pod, err := admitted("bound", at, raw)
		if err != nil {
			return nil, err
		}
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			found.bound = append(found.bound, pod)
		}
	}
	for at, each := range given.Placements {
		pod, err := admitted("placements", at, each.Pod)
		if err != nil {
			return nil, err
		}
		if each.Nominated {
			pod.Status.NominatedNodeName = each.Node
		}
		found.placements = append(found.placements, &placement{pod, each.Node, each.Nominated, class(pod, each.Node)})
	}
	for at, raw := range given.Unplaced {
		pod, err := admitted("unplaced", at, raw)
		if err != nil {
			return nil, err
		}
		found.unplaced = append(found.unplaced, &placement{pod: pod, class: class(pod, "")})
	}
	found.standing = map[string]bool{}
	for _, name := range given.Standing {
		found.standing[name] = true
	}
	for _, object := range found.objects {
		if set, ok := object.(*appsv1.DaemonSet); ok {
			for _, node := range append(append([]*corev1.Node(nil), found.nodes...), found.empty...) {
				if pod := daemonPod(set, node, found.bound); pod != nil && !found.standing[node.Name] {
					admission.admit(pod)
					found.daemons = append(found.daemons, &placement{pod: pod, node: node.Name, class: class(pod, node.Name)})
				}
			}
		}
	}
	found.objects = append(admission.made, admission.others(found.objects)...)
	return found, nil
}

// daemonPod is the pod that the DaemonSet's controller makes for a node; nil where it makes none, or has made one.
func daemonPod(set *appsv1.DaemonSet, node *corev1.Node, bound []*corev1.Pod) *corev1.Pod {
	for _, each := range bound {
		owner := metav1.GetControllerOf(each)
		if each.Spec.NodeName == node.Name && each.Namespace == set.Namespace && owner != nil && owner.Kind == "DaemonSet" && owner.Name == set.Name {
			return nil
		}
	}
	if runs, _ := shouldRun(node, set); !runs {
		return nil
	}
	pod := daemon.NewPod(set.DeepCopy(), node.Name)
	pod.Name = set.Name + "-" + node.Name
	pod.UID = types.UID(pod.Namespace + "/" + pod.Name)
	legacyscheme.Scheme.Default(pod)
	// The controller ties it to the node by affinity, and lets the scheduler bind it.
	pod.Spec.NodeName = ""
	pod.Spec.Affinity = daemonutil.ReplaceDaemonSetPodNodeNameNodeAffinity(pod.Spec.Affinity, node.Name)
	return pod
}

func nodes(list string, raws []json.RawMessage) ([]*corev1.Node, error) {
	var found []*corev1.Node
	for at, raw := range raws {
		object, err := decoded(raw, corev1.SchemeGroupVersion.WithKind("Node"))
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", list, at, err)
		}
		node, ok := object.(*corev1.Node)
		if !ok {
			return nil, fmt.Errorf("%s[%d]: is a %T and no node", list, at, object)
		}
		found = append(found, node)
	}
	return found, nil
}

// decoded is an object with the API server's defaults, in v1 where its group has that.
func decoded(raw []byte, kind schema.GroupVersionKind) (runtime.Object, error) {
	object, found, err := legacyscheme.Codecs.UniversalDeserializer().Decode(raw, &kind, nil)
	if err != nil {
		return nil, err
	}
	legacyscheme.Scheme.Default(object)
	stable := schema.GroupVersion{Group: found.Group, Version: "v1"}
	if found.Version == stable.Version || !legacyscheme.Scheme.Recognizes(stable.WithKind(found.Kind)) {
		return object, nil
	}
	internal, err := legacyscheme.Scheme.ConvertToVersion(object, schema.GroupVersion{Group: found.Group, Version: runtime.APIVersionInternal})
	if err != nil {
		return nil, err
	}
	return legacyscheme.Scheme.ConvertToVersion(internal, stable)
}

// class tells pods apart that a scheduler could: by all but their names, and by their names too where volumes or claims
// are theirs alone.
func class(pod *corev1.Pod, node string) string {
	own := ""
	if len(pod.Spec.ResourceClaims) > 0 {
		own = pod.Name
	}
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim != nil || volume.Ephemeral != nil {
			own = pod.Name
		}
	}
	spec, err := json.Marshal([]any{pod.Namespace, node, own, pod.Labels, pod.Spec, pod.DeletionTimestamp != nil})
	if err != nil {
		panic(err) // it was read from JSON
	}
	return string(spec)
}

// admission is what the API server's admission, and the controllers of claims, add to objects.
type admission struct {
	priorities      map[string]int32
	defaultPriority int32
	runtimes        map[string]*nodev1.RuntimeClass
	storageClass    string
	templates       map[string]runtime.Object
	namespaces      map[string]bool
	given           map[string]bool
	// What is made for pods: claims of templates and of ephemeral volumes, and namespaces.
	made []runtime.Object
}

func newAdmission(objects []runtime.Object) *admission {
	found := &admission{
		priorities: map[string]int32{},
		runtimes:   map[string]*nodev1.RuntimeClass{},
		templates:  map[string]runtime.Object{},
		namespaces: map[string]bool{},
		given:      map[string]bool{},
	}
	for name, value := range systemPriorities {
		found.priorities[name] = value
	}
	var defaults []*storagev1.StorageClass
	for _, object := range objects {
		switch each := object.(type) {
		case *schedulingv1.PriorityClass:
			found.priorities[each.Name] = each.Value
			if each.GlobalDefault {
				found.defaultPriority = each.Value
			}
		case *nodev1.RuntimeClass:
			found.runtimes[each.Name] = each
		case *storagev1.StorageClass:
			if each.Annotations[defaultClass] == "true" {
				defaults = append(defaults, each)
			}
		case *corev1.Namespace:
			found.namespaces[each.Name] = true
		}
		if kind := object.GetObjectKind().GroupVersionKind().Kind; kind == "ResourceClaimTemplate" {
			found.templates[key(object)] = object
		} else {
			found.given[kind+" "+key(object)] = true
		}
	}
	sort.SliceStable(defaults, func(i, j int) bool {
		if !defaults[i].CreationTimestamp.Equal(&defaults[j].CreationTimestamp) {
			return defaults[j].CreationTimestamp.Before(&defaults[i].CreationTimestamp)
		}
		return defaults[i].Name < defaults[j].Name
	})
	if len(defaults) > 0 {
		found.storageClass = defaults[0].Name
	}
	for _, object := range objects {
		if claim, ok := object.(*corev1.PersistentVolumeClaim); ok {
			found.class(claim)
		}
	}
	return found
}

// others are the objects that are listed, with a UID each.
func (a *admission) others(objects []runtime.Object) []runtime.Object {
	for _, object := range objects {
		if each, err := meta.Accessor(object); err == nil && each.GetUID() == "" {
			each.SetUID(types.UID(object.GetObjectKind().GroupVersionKind().Kind + " " + key(object)))
		}
	}
	return objects
}

func (a *admission) class(claim *corev1.PersistentVolumeClaim) {
	if claim.Spec.StorageClassName == nil && a.storageClass != "" {
		claim.Spec.StorageClassName = &a.storageClass
	}
}

func (a *admission) admit(pod *corev1.Pod) {
	if !a.namespaces[pod.Namespace] {
		a.namespaces[pod.Namespace] = true
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pod.Namespace}}
		legacyscheme.Scheme.Default(namespace)
		a.made = append(a.made, namespace)
	}
	if value, ok := a.priorities[pod.Spec.PriorityClassName]; ok {
		pod.Spec.Priority = &value
	} else if pod.Spec.Priority == nil {
		pod.Spec.Priority = &a.defaultPriority
	}
	labelKeys(pod)
	for _, condition := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		tolerateForAWhile(pod, condition)
	}
	if name := pod.Spec.RuntimeClassName; name != nil && a.runtimes[*name] != nil {
		a.runtime(pod, a.runtimes[*name])
	}
	for at := range pod.Spec.Volumes {
		if source := pod.Spec.Volumes[at].Ephemeral; source != nil && source.VolumeClaimTemplate != nil {
			a.ephemeral(pod, &pod.Spec.Volumes[at])
		}
	}
	a.claims(pod)
}

func (a *admission) runtime(pod *corev1.Pod, class *nodev1.RuntimeClass) {
	if class.Overhead != nil {
		pod.Spec.Overhead = class.Overhead.PodFixed
	}
	if class.Scheduling == nil {
		return
	}
	for name, value := range class.Scheduling.NodeSelector {
		if pod.Spec.NodeSelector == nil {
			pod.Spec.NodeSelector = map[string]string{}
		}
		pod.Spec.NodeSelector[name] = value
	}
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, class.Scheduling.Tolerations...)
}

// affinityTerms are all terms between pods that a pod has.
func affinityTerms(pod *corev1.Pod) []*corev1.PodAffinityTerm {
	var found []*corev1.PodAffinityTerm
	take := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for at := range required {
			found = append(found, &required[at])
		}
		for at := range preferred {
			found = append(found, &preferred[at].PodAffinityTerm)
		}
	}
	if of := pod.Spec.Affinity; of != nil && of.PodAffinity != nil {
		take(of.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, of.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if of := pod.Spec.Affinity; of != nil && of.PodAntiAffinity != nil {
		take(of.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, of.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return found
}

// tolerateForAWhile is what the plug-in DefaultTolerationSeconds does.
func tolerateForAWhile(pod *corev1.Pod, condition string) {
	for _, each := range pod.Spec.Tolerations {
		if (each.Key == condition || each.Key == "") && (each.Effect == corev1.TaintEffectNoExecute || each.Effect == "") {
			return
		}
	}
	seconds := int64(300)
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
		Key: condition, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &seconds,
	})
}

// ephemeral makes the claim of an ephemeral volume, as the controller of these does.
func (a *admission) ephemeral(pod *corev1.Pod, volume *corev1.Volume) {
	claim := &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: a.owned(pod, pod.Name+"-"+volume.Name),
		Spec:       volume.Ephemeral.VolumeClaimTemplate.Spec,
	}
	if a.given["PersistentVolumeClaim "+key(claim)] {
		return
	}
	legacyscheme.Scheme.Default(claim)
	a.class(claim)
	a.made = append(a.made, claim)
}

func (a *admission) owned(pod *corev1.Pod, name string) metav1.ObjectMeta {
	yes := true
	return metav1.ObjectMeta{
		Name: name, Namespace: pod.Namespace, UID: types.UID("of " + pod.Namespace + "/" + name),
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &yes}},
	}
}

func key(object runtime.Object) string {
	each, err := meta.Accessor(object)
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(each.GetNamespace()+"/"+each.GetName(), "/")
}
