// Command karpenter-scheduler lets Karpenter's own scheduler, unchanged, place pods on new nodes: the yardstick of
// bench/karpenter_scheduler.py. Pods and instance types are read from stdin, one JSON object; what the scheduler makes of
// them, and how long it took, is written to stdout.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	fakecr "sigs.k8s.io/controller-runtime/pkg/client/fake"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
	"sigs.k8s.io/karpenter/pkg/cloudprovider"
	"sigs.k8s.io/karpenter/pkg/controllers/provisioning/scheduling"
	"sigs.k8s.io/karpenter/pkg/controllers/state"
	"sigs.k8s.io/karpenter/pkg/events"
	"sigs.k8s.io/karpenter/pkg/operator/injection"
	"sigs.k8s.io/karpenter/pkg/operator/logging"
	"sigs.k8s.io/karpenter/pkg/operator/options"
	karpenter "sigs.k8s.io/karpenter/pkg/scheduling"
)

// Pools are bound by this much, which is never reached: bounds are kept account of, as in production.
const most = "10000000"

// How many nodes the scheduler tries a pod on at once, as Karpenter's own benchmark has it.
const concurrent = 5

type offering struct {
	Zone         string  `json:"zone"`
	CapacityType string  `json:"capacityType"`
	Price        float64 `json:"price"`
}

type instanceType struct {
	Name        string              `json:"name"`
	Capacity    corev1.ResourceList `json:"capacity"`
	Allocatable corev1.ResourceList `json:"allocatable"`
	Offerings   []offering          `json:"offerings"`
}

type input struct {
	InstanceTypes []instanceType `json:"instanceTypes"`
	Pods          []*corev1.Pod  `json:"pods"`
}

type node struct {
	InstanceType string   `json:"instanceType"`
	Offering     offering `json:"offering"`
	Pods         []string `json:"pods"`
}

type output struct {
	Seconds  float64  `json:"seconds"`
	Nodes    []node   `json:"nodes"`
	Unplaced int      `json:"unplaced"`
	Problems []string `json:"problems"`
}

func main() {
	log.SetFlags(0)
	crlog.SetLogger(logging.NopLogger)
	var given input
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		log.Fatalf("reading pods and instance types, %s", err)
	}
	found, err := schedule(given)
	if err != nil {
		log.Fatalf("scheduling, %s", err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		log.Fatalf("writing what was found, %s", err)
	}
}

func schedule(given input) (output, error) {
	defaults := &options.Options{}
	flags := &options.FlagSet{FlagSet: flag.NewFlagSet("karpenter", flag.ContinueOnError)}
	defaults.AddFlags(flags)
	if err := defaults.Parse(flags); err != nil {
		return output{}, err
	}
	ctx := options.ToContext(injection.WithControllerName(context.Background(), "provisioner"), defaults)
	pool := &v1.NodePool{Spec: v1.NodePoolSpec{Limits: v1.Limits{
		corev1.ResourceCPU:    resource.MustParse(most),
		corev1.ResourceMemory: resource.MustParse(most + "Gi"),
	}}}
	pool.Name = "default"
	pool.Spec.Template.Spec.NodeClassRef = &v1.NodeClassReference{Group: "cagrpc.io", Kind: "NodeClass", Name: "default"}
	types := map[string][]*cloudprovider.InstanceType{pool.Name: instanceTypes(given.InstanceTypes)}
	pools := []*v1.NodePool{pool}
	client := fakecr.NewFakeClient()
	cluster := state.NewCluster(&clock.RealClock{}, client, nil)
	parallel := scheduling.NumConcurrentReconciles(concurrent)
	began := time.Now()
	topology, err := scheduling.NewTopology(ctx, client, cluster, nil, pools, types, given.Pods, parallel)
	if err != nil {
		return output{}, err
	}
	recorder := events.NewRecorder(&record.FakeRecorder{})
	scheduler := scheduling.NewScheduler(
		ctx, client, pools, cluster, nil, topology, types, nil, recorder, &clock.RealClock{}, nil, nil, parallel)
	results, err := scheduler.Solve(ctx, given.Pods)
	if err != nil {
		return output{}, err
	}
	found := output{Seconds: time.Since(began).Seconds(), Nodes: []node{}, Unplaced: len(results.PodErrors)}
	for pod, err := range results.PodErrors {
		if len(found.Problems) < 3 {
			found.Problems = append(found.Problems, fmt.Sprintf("%s: %s", pod.Name, err))
		}
	}
	for _, claim := range results.NewNodeClaims {
		found.Nodes = append(found.Nodes, launched(claim))
	}
	return found, nil
}

func instanceTypes(given []instanceType) []*cloudprovider.InstanceType {
	found := make([]*cloudprovider.InstanceType, 0, len(given))
	for _, each := range given {
		var zones, capacityTypes []string
		var offerings cloudprovider.Offerings
		for _, offering := range each.Offerings {
			zones = append(zones, offering.Zone)
			capacityTypes = append(capacityTypes, offering.CapacityType)
			offerings = append(offerings, &cloudprovider.Offering{
				Requirements: karpenter.NewRequirements(
					karpenter.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, offering.Zone),
					karpenter.NewRequirement(v1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, offering.CapacityType),
				),
				Price:     offering.Price,
				Available: true,
			})
		}
		kept := corev1.ResourceList{}
		for name, amount := range each.Capacity {
			amount = amount.DeepCopy()
			amount.Sub(each.Allocatable[name])
			kept[name] = amount
		}
		found = append(found, &cloudprovider.InstanceType{
			Name: each.Name,
			Requirements: karpenter.NewRequirements(
				karpenter.NewRequirement(corev1.LabelInstanceTypeStable, corev1.NodeSelectorOpIn, each.Name),
				karpenter.NewRequirement(corev1.LabelArchStable, corev1.NodeSelectorOpIn, "amd64"),
				karpenter.NewRequirement(corev1.LabelOSStable, corev1.NodeSelectorOpIn, string(corev1.Linux)),
				karpenter.NewRequirement(corev1.LabelTopologyZone, corev1.NodeSelectorOpIn, zones...),
				karpenter.NewRequirement(v1.CapacityTypeLabelKey, corev1.NodeSelectorOpIn, capacityTypes...),
			),
			Offerings: offerings,
			Capacity:  each.Capacity,
			Overhead:  &cloudprovider.InstanceTypeOverhead{KubeReserved: kept},
		})
	}
	return found
}

// What a cloud launches for the claim: the cheapest of the offerings that it allows.
func launched(claim *scheduling.NodeClaim) node {
	found := node{Offering: offering{Price: math.Inf(1)}}
	for _, each := range claim.InstanceTypeOptions {
		for _, one := range each.Offerings.Available().Compatible(claim.Requirements) {
			if one.Price < found.Offering.Price {
				found.InstanceType = each.Name
				found.Offering = offering{one.Zone(), one.CapacityType(), one.Price}
			}
		}
	}
	for _, pod := range claim.Pods {
		found.Pods = append(found.Pods, pod.Name)
	}
	return found
}
