package main

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	selectedNode  = "volume.kubernetes.io/selected-node"
	bindCompleted = "pv.kubernetes.io/bind-completed"
)

// bindVolumes does what the PV controller and a storage driver do once the scheduler has bound volumes or selected a
// node: everything that the store was given since its first so many changes.
func bindVolumes(store *store, since int, node *corev1.Node) {
	for _, change := range append([]change(nil), store.changes[since:]...) {
		switch object := change.now.(type) {
		case *corev1.PersistentVolume:
			if of := object.Spec.ClaimRef; of != nil {
				claim := get(store, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name}})
				if claim != nil && claim.Spec.VolumeName == "" {
					bound(store, claim, object)
				}
			}
		case *corev1.PersistentVolumeClaim:
			if object.Annotations[selectedNode] == node.Name && object.Spec.VolumeName == "" {
				bound(store, object, provisioned(store, object, node))
			}
		}
	}
}

func bound(store *store, claim *corev1.PersistentVolumeClaim, volume *corev1.PersistentVolume) {
	volume, claim = volume.DeepCopy(), claim.DeepCopy()
	volume.Status.Phase, claim.Status.Phase = corev1.VolumeBound, corev1.ClaimBound
	claim.Spec.VolumeName = volume.Name
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, bindCompleted, "yes")
	store.put(volume)
	store.put(claim)
}

// provisioned is the volume that a driver makes for a claim: reachable from where the selected node is, by the keys that
// the driver has there or, where it says none, by those that the class allows.
func provisioned(store *store, claim *corev1.PersistentVolumeClaim, node *corev1.Node) *corev1.PersistentVolume {
	made := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(claim.UID), UID: "PersistentVolume of " + claim.UID},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: claim.Spec.AccessModes,
			Capacity:    claim.Spec.Resources.Requests,
			VolumeMode:  claim.Spec.VolumeMode,
			ClaimRef:    &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
		},
	}
	if claim.Spec.StorageClassName == nil {
		return made
	}
	made.Spec.StorageClassName = *claim.Spec.StorageClassName
	class := get(store, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: made.Spec.StorageClassName}})
	if class == nil {
		return made
	}
	made.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: class.Provisioner, VolumeHandle: made.Name}
	var keys []string
	if known := get(store, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}); known != nil {
		for _, driver := range known.Spec.Drivers {
			if driver.Name == class.Provisioner {
				keys = driver.TopologyKeys
			}
		}
	}
	if len(keys) == 0 {
		for _, term := range class.AllowedTopologies {
			for _, each := range term.MatchLabelExpressions {
				keys = append(keys, each.Key)
			}
		}
	}
	var reach []corev1.NodeSelectorRequirement
	for _, key := range keys {
		if value, ok := node.Labels[key]; ok {
			reach = append(reach, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
		}
	}
	if len(reach) > 0 {
		terms := []corev1.NodeSelectorTerm{{MatchExpressions: reach}}
		made.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
	return made
}

type object[T any] interface {
	*T
	runtimeObject
}

// get is the object of this kind, namespace and name, or nil.
func get[T any, P object[T]](store *store, like P) P {
	found, ok, _ := store.list(like).Get(like)
	if !ok {
		return nil
	}
	return found.(P)
}
