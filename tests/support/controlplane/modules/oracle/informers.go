package main

import (
	"context"
	"reflect"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/apps"
	"k8s.io/client-go/informers/core"
	"k8s.io/client-go/informers/internalinterfaces"
	"k8s.io/client-go/informers/policy"
	"k8s.io/client-go/informers/resource"
	"k8s.io/client-go/informers/scheduling"
	"k8s.io/client-go/informers/storage"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
)

// store has the objects of one question. What the scheduler's plug-ins know as informers are its lists: whatever changes
// is told to them before the change returns. Every change can be undone.
type store struct {
	informers.SharedInformerFactory // the groups below are all that plug-ins ask for
	lists                           map[reflect.Type]*list
	version                         int
	changes                         []change
}

type change struct {
	list     *list
	old, now any
}

func newStore() *store { return &store{lists: map[reflect.Type]*list{}} }

func (s *store) Apps() apps.Interface             { return apps.New(s, "", nil) }
func (s *store) Core() core.Interface             { return core.New(s, "", nil) }
func (s *store) Policy() policy.Interface         { return policy.New(s, "", nil) }
func (s *store) Resource() resource.Interface     { return resource.New(s, "", nil) }
func (s *store) Scheduling() scheduling.Interface { return scheduling.New(s, "", nil) }
func (s *store) Storage() storage.Interface       { return storage.New(s, "", nil) }

func (s *store) InformerFor(object runtime.Object, _ internalinterfaces.NewInformerFunc) cache.SharedIndexInformer {
	return s.list(object)
}

func (s *store) list(object runtime.Object) *list {
	kind := reflect.TypeOf(object)
	if s.lists[kind] == nil {
		index := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
		s.lists[kind] = &list{Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, index)}
	}
	return s.lists[kind]
}

// replace forgets all objects, and has these instead.
func (s *store) replace(objects []runtime.Object) {
	for _, list := range s.lists {
		for _, old := range list.List() {
			list.tell(old, nil)
		}
	}
	s.changes = nil
	for _, object := range objects {
		s.put(object)
	}
	s.changes = nil
}

// put stores an object in a newer version, and returns that.
func (s *store) put(object runtime.Object) runtime.Object {
	now := object.DeepCopyObject()
	s.version++
	if each, err := meta.Accessor(now); err == nil {
		each.SetResourceVersion(strconv.Itoa(s.version))
	}
	list := s.list(now)
	old, _, _ := list.Get(now)
	list.tell(old, now)
	s.changes = append(s.changes, change{list, old, now})
	return now.DeepCopyObject() // plug-ins write into what they get
}

// undo takes back all changes but the first so many.
func (s *store) undo(but int) {
	for len(s.changes) > but {
		last := s.changes[len(s.changes)-1]
		s.changes = s.changes[:len(s.changes)-1]
		if last.old == nil {
			last.list.tell(last.now, nil)
			continue
		}
		old := last.old.(runtime.Object).DeepCopyObject()
		s.version++
		if each, err := meta.Accessor(old); err == nil {
			each.SetResourceVersion(strconv.Itoa(s.version)) // an assume cache takes nothing that is older than it knows
		}
		last.list.tell(last.now, old)
	}
}

// list is an informer that is always up to date.
type list struct {
	cache.Indexer
	cache.SharedIndexInformer // nothing else is called
	handlers                  []cache.ResourceEventHandler
}

func (l *list) AddIndexers(indexers cache.Indexers) error { return l.Indexer.AddIndexers(indexers) }
func (l *list) GetIndexer() cache.Indexer                 { return l.Indexer }
func (l *list) GetStore() cache.Store                     { return l.Indexer }
func (l *list) HasSynced() bool                           { return true }

func (l *list) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	l.handlers = append(l.handlers, handler)
	return l, nil
}

func (l *list) tell(old, now any) {
	switch {
	case now == nil:
		_ = l.Indexer.Delete(old)
	case old == nil:
		_ = l.Indexer.Add(now)
	default:
		_ = l.Indexer.Update(now)
	}
	for _, handler := range l.handlers {
		switch {
		case now == nil:
			handler.OnDelete(old)
		case old == nil:
			handler.OnAdd(now, false)
		default:
			handler.OnUpdate(old, now)
		}
	}
}

// client is the API server, for what plug-ins write when they bind.
type client struct {
	kubernetes.Interface
	store *store
}

type coreClient struct {
	corev1client.CoreV1Interface
	store *store
}

type volumes struct {
	corev1client.PersistentVolumeInterface
	store *store
}

type volumeClaims struct {
	corev1client.PersistentVolumeClaimInterface
	store *store
}

func (c *client) CoreV1() corev1client.CoreV1Interface { return &coreClient{store: c.store} }

func (c *coreClient) PersistentVolumes() corev1client.PersistentVolumeInterface {
	return &volumes{store: c.store}
}

func (c *coreClient) PersistentVolumeClaims(string) corev1client.PersistentVolumeClaimInterface {
	return &volumeClaims{store: c.store}
}

func (v *volumes) Update(_ context.Context, volume *corev1.PersistentVolume, _ metav1.UpdateOptions) (*corev1.PersistentVolume, error) {
	return v.store.put(volume).(*corev1.PersistentVolume), nil
}

func (v *volumeClaims) Update(_ context.Context, claim *corev1.PersistentVolumeClaim, _ metav1.UpdateOptions) (*corev1.PersistentVolumeClaim, error) {
	return v.store.put(claim).(*corev1.PersistentVolumeClaim), nil
}
