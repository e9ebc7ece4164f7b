// Command karpenter is Karpenter's core, unchanged, over a cloud that runs out of machines: the kwok provider behind a
// stock per offering. What the cloud has is in the file CLOUD_STOCK, which a test may write anew at any time; each launch
// and its answer is a line of the file CLOUD_LOG.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	kwok "sigs.k8s.io/karpenter/kwok/cloudprovider"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/cloudprovider/overlay"
	"sigs.k8s.io/karpenter/pkg/controllers"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/operator"
)

// What the cloud answers for an offering, by `type/zone/capacity type`; for one that is not listed, yes.
type answer struct {
	// How many machines of the offering may exist; none is no bound.
	Stock *int `json:"stock"`
	// What the cloud says to one more.
	Message string `json:"message"`
}

type machine struct {
	offering string
	since    time.Time
}

// The time from a launch's answer to its Node in the provider's list.
const settling = 10 * time.Second

// The time from a launch to its Node's creation, at most: kwok creates it in the background.
const registering = 2 * time.Second

type cloud struct {
	*kwok.CloudProvider
	nodes    client.Client
	lock     sync.Mutex
	launched map[string]machine
}

func (c *cloud) Create(ctx context.Context, claim *v1.NodeClaim) (*v1.NodeClaim, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	offering := offeringOf(claim)
	created, err := c.launch(ctx, claim, offering)
	if err == nil {
		c.launched[created.Status.ProviderID] = machine{offering, time.Now()}
	}
	return created, errors.Join(err, note(claim.Name, offering, err))
}

func (c *cloud) launch(ctx context.Context, claim *v1.NodeClaim, offering string) (*v1.NodeClaim, error) {
	answers := map[string]answer{}
	written, err := os.ReadFile(os.Getenv("CLOUD_STOCK"))
	if err == nil {
		err = json.Unmarshal(written, &answers)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what the cloud has, %w", err)
	}
	has := answers[offering]
	if has.Stock == nil {
		return c.CloudProvider.Create(ctx, claim)
	}
	taken, err := c.taken(ctx, offering)
	if err != nil {
		return nil, err
	}
	if taken < *has.Stock {
		return c.CloudProvider.Create(ctx, claim)
	}
	return nil, cloudprovider.NewInsufficientCapacityError(errors.New(has.Message))
}

// How many machines of the offering exist: those that the provider lists, and those whose Node is still to come.
func (c *cloud) taken(ctx context.Context, offering string) (int, error) {
	listed, err := c.List(ctx)
	if err != nil {
		return 0, err
	}
	count, seen := 0, map[string]bool{}
	for _, each := range listed {
		seen[each.Status.ProviderID] = true
		if labelled(each) == offering {
			count++
		}
	}
	for id, each := range c.launched {
		if !seen[id] && time.Since(each.since) < settling && each.offering == offering {
			count++
		}
	}
	return count, nil
}

// A machine that ends takes its Node along, as a cloud's node controller sees to it: kwok's own leaves the Node of a
// NodeClaim that was never registered.
func (c *cloud) Delete(ctx context.Context, claim *v1.NodeClaim) error {
	c.lock.Lock()
	since := c.launched[claim.Status.ProviderID].since
	c.lock.Unlock()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: strings.TrimPrefix(claim.Status.ProviderID, "kwok://")}}
	err := c.nodes.Delete(ctx, node)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err != nil && time.Since(since) < registering {
		return nil // its Node is still to come: Karpenter asks again
	}
	return cloudprovider.NewNodeClaimNotFoundError(errors.New("the machine is gone"))
}

func offeringOf(claim *v1.NodeClaim) string {
	values := map[string]string{}
	for _, each := range claim.Spec.Requirements {
		values[each.Key] = strings.Join(each.Values, ",")
	}
	return values[corev1.LabelInstanceTypeStable] + "/" + values[corev1.LabelTopologyZone] + "/" + values[v1.CapacityTypeLabelKey]
}

func labelled(claim *v1.NodeClaim) string {
	return claim.Labels[corev1.LabelInstanceTypeStable] + "/" + claim.Labels[corev1.LabelTopologyZone] + "/" + claim.Labels[v1.CapacityTypeLabelKey]
}

func note(name, offering string, launch error) error {
	said := ""
	if launch != nil {
		said = launch.Error()
	}
	line, err := json.Marshal(map[string]any{
		"at": float64(time.Now().UnixNano()) / 1e9, "claim": name, "offering": offering, "error": said,
	})
	if err != nil {
		return err
	}
	log, err := os.OpenFile(os.Getenv("CLOUD_LOG"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = log.Write(append(line, '\n'))
	return errors.Join(err, log.Close())
}

func main() {
	ctx, op := operator.NewOperator()
	types, err := kwok.ConstructInstanceTypes(ctx)
	if err != nil {
		panic(err)
	}
	ours := &cloud{CloudProvider: kwok.NewCloudProvider(ctx, op.GetClient(), types), nodes: op.GetClient(), launched: map[string]machine{}}
	decorated := overlay.Decorate(ours, op.GetClient(), op.InstanceTypeStore)
	cluster := state.NewCluster(op.Clock, op.GetClient(), decorated)
	all := controllers.NewControllers(
		ctx, op.Manager, op.Clock, op.GetClient(), op.EventRecorder, decorated, ours, cluster, op.InstanceTypeStore,
	)
	op.WithControllers(ctx, all...).Start(ctx)
}
