package main

import (
	"context"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

type settings struct {
	scores        bool
	orders, steps int
	seed          int64
}

type refusedPod struct {
	Pod    string `json:"pod"`
	Node   string `json:"node"`
	Plugin string `json:"plugin"`
	Why    string `json:"why"`
}

type stuckPod struct {
	Pod    string   `json:"pod"`
	Order  []string `json:"order"`
	Plugin string   `json:"plugin"`
	Why    string   `json:"why"`
	// Pods that were left out and have a node now.
	Instead []string `json:"instead"`
}

type answer struct {
	// Placements that no order binds; where Undecided is not zero, that none of the orders tried binds.
	Refused []refusedPod `json:"refused"`
	// How many placements are in Refused, and might be bound in an order that was not tried.
	Undecided   int        `json:"undecided"`
	Stuck       []stuckPod `json:"stuck"`
	OrdersTried int        `json:"orders_tried"`
	// Of each pod that is left out, the nodes that take it after the placements.
	Takes map[string][]string `json:"takes"`
	// Of each placement, before it is bound, and of each pod that is left out: by node and plug-in.
	Scores map[string]map[string]map[string]int64 `json:"scores,omitempty"`
}

func (s *scheduler) ask(asked *question, settings settings) (*answer, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := answerable(asked); err != nil {
		return nil, err
	}
	world, err := s.open(klog.NewContext(ctx, klog.Logger{}), asked, settings.seed)
	if err != nil {
		return nil, err
	}
	placements, err := world.daemons(asked)
	if err != nil {
		return nil, err
	}
	placements = append(placements, asked.placements...)
	queue := append(append([]*placement(nil), placements...), asked.unplaced...)
	if err := world.wait(queue); err != nil {
		return nil, err
	}
	found := &answer{Refused: []refusedPod{}, Stuck: []stuckPod{}, Takes: map[string][]string{}}
	if settings.scores {
		found.Scores = map[string]map[string]map[string]int64{}
	}
	if err := world.place(placements, settings.steps, found); err != nil {
		return nil, err
	}
	if err := world.takes(asked, found); err != nil {
		return nil, err
	}
	for order := 0; order < settings.orders && len(placements) > 0 && len(found.Stuck) == 0; order++ {
		if err := world.unbind(0); err != nil {
			return nil, err
		}
		found.OrdersTried++
		if found.Stuck, err = world.run(placements[:len(placements)-len(asked.placements)], queue, order > 0); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// daemons are the pods of DaemonSets that fit as long as nothing of the plan is there but what needs no new node: others
// would wait in any case.
func (w *world) daemons(asked *question) ([]*placement, error) {
	var found, atOnce []*placement
	for _, each := range asked.placements {
		if asked.standing[each.node] {
			atOnce = append(atOnce, each)
		}
	}
	if _, err := w.greedy(atOnce, &answer{}); err != nil {
		return nil, err
	}
	for _, each := range asked.daemons {
		if _, err := w.shared.NodeInfos().Get(each.node); err != nil {
			continue // of an empty node
		}
		refused, err := w.put(each)
		if err != nil {
			return nil, err
		}
		if refused == nil {
			found = append(found, each)
		}
	}
	return found, w.unbind(0)
}

// run lets the scheduler place all pods by itself, what has a higher priority first, and tries what does not fit again
// until nothing changes; it answers the placed pods that are left without a node. Pods of DaemonSets come first, as they
// are there before their node is Ready.
func (w *world) run(first, queue []*placement, shuffled bool) ([]stuckPod, error) {
	waiting := append([]*placement(nil), queue[len(first):]...)
	if shuffled {
		w.random.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
	}
	sort.SliceStable(waiting, func(i, j int) bool { return *waiting[i].pod.Spec.Priority > *waiting[j].pod.Spec.Priority })
	waiting = append(append([]*placement(nil), first...), waiting...)
	names := make([]string, 0, len(waiting))
	for _, each := range waiting {
		names = append(names, each.name())
	}
	whys := map[*placement]*refusal{}
	for changed := true; changed && len(waiting) > 0; {
		changed = false
		var left []*placement
		for _, each := range waiting {
			cycle := w.cycle(each)
			node, refused := cycle.choose()
			if refused == nil {
				refused = cycle.bind(node)
			}
			if refused != nil {
				whys[each] = refused
				left = append(left, each)
			} else {
				changed = true
			}
		}
		waiting = left
	}
	stuck, instead := []stuckPod{}, []string{}
	for _, each := range w.bound {
		if each.of.node == "" {
			instead = append(instead, each.of.name())
		}
	}
	for _, each := range waiting {
		if each.node != "" {
			stuck = append(stuck, stuckPod{each.name(), names, whys[each].plugin, whys[each].why, instead})
		}
	}
	return stuck, nil
}

// search looks for an order in which every pod is bound to its node.
type search struct {
	*world
	classes [][]*placement
	steps   int
	most    []*placement
	whys    map[*placement]*refusal
	dead    map[string]bool
	failed  error
}

// Plug-ins whose verdict no other pod makes better: whoever comes last of pods that exclude each other is refused.
var ofNoOrder = map[string]bool{
	"": true, "NodeAffinity": true, "NodeName": true, "NodePorts": true, "NodeResourcesFit": true, "NodeUnschedulable": true,
	"NodeVolumeLimits": true, "PreFilter": true, "SchedulingGates": true, "TaintToleration": true, "VolumeRestrictions": true,
	"VolumeZone": true,
}

func (r *refusal) ofNoOrder() bool {
	return ofNoOrder[r.plugin] || r.plugin == "InterPodAffinity" && strings.Contains(r.why, "anti-affinity")
}

// place binds the placements in an order that takes all of them, or else in the best one that was found.
func (w *world) place(placements []*placement, steps int, found *answer) error {
	search := &search{world: w, steps: steps, dead: map[string]bool{}}
	at := map[string]int{}
	for _, each := range placements {
		index, known := at[each.class]
		if !known {
			index = len(search.classes)
			at[each.class] = index
			search.classes = append(search.classes, nil)
		}
		search.classes[index] = append(search.classes[index], each)
	}
	left, err := w.greedy(placements, found)
	if err != nil {
		return err
	}
	first := w.order()
	if len(left) == 0 {
		return nil
	}
	search.most, search.whys = first, left
	decided := false
	for _, why := range left {
		decided = decided || why.ofNoOrder()
	}
	if !decided {
		if err := w.unbind(0); err != nil {
			return err
		}
		done := search.from(make([]int, len(search.classes)), len(placements))
		if search.failed != nil {
			return search.failed
		}
		if done {
			return w.rescored(found)
		}
		if search.steps <= 0 {
			found.Undecided = len(placements) - len(search.most)
		}
		if err := w.unbind(0); err != nil {
			return err
		}
		for _, each := range search.most {
			if _, err := w.put(each); err != nil {
				return err
			}
		}
	}
	for _, each := range placements {
		if why, out := search.whys[each]; out {
			found.Refused = append(found.Refused, refusedPod{each.name(), each.node, why.plugin, why.why})
		}
	}
	return nil
}

// order are the pods that are bound, in the order in which they were.
func (w *world) order() []*placement {
	var found []*placement
	for _, each := range w.bound {
		found = append(found, each.of)
	}
	return found
}

// greedy binds what can be bound, again and again, and answers what is left.
func (w *world) greedy(placements []*placement, found *answer) (map[*placement]*refusal, error) {
	waiting := placements
	for {
		var left []*placement
		whys := map[*placement]*refusal{}
		for _, each := range waiting {
			if err := w.score(each, found); err != nil {
				return nil, err
			}
			refused, err := w.put(each)
			if err != nil {
				return nil, err
			}
			if refused != nil {
				left, whys[each] = append(left, each), refused
			}
		}
		if len(left) == 0 || len(left) == len(waiting) {
			return whys, nil
		}
		waiting = left
	}
}

// put binds a pod to the node that it is planned on, or says why that is refused.
func (w *world) put(each *placement) (*refusal, error) {
	node, err := w.shared.NodeInfos().Get(each.node)
	if err != nil {
		return &refusal{"", "there is no such node"}, nil
	}
	cycle := w.cycle(each)
	if refused := cycle.refused(node); refused != nil {
		return refused, nil
	}
	return cycle.bind(node), nil
}

// from goes on where so many pods of each class are bound, and answers whether all were; what is bound then stays so.
func (s *search) from(counts []int, left int) bool {
	if left == 0 {
		return true
	}
	state := stateOf(counts)
	if s.dead[state] {
		return false
	}
	whys := map[*placement]*refusal{}
	depth := len(s.bound)
	for at, class := range s.classes {
		if counts[at] == len(class) {
			continue
		}
		if s.steps--; s.steps < 0 {
			return false
		}
		refused, err := s.put(class[counts[at]])
		if err != nil {
			s.failed = err
			return false
		}
		if refused != nil {
			for _, each := range class[counts[at]:] {
				whys[each] = refused
			}
			continue
		}
		counts[at]++
		if s.from(counts, left-1) {
			return true
		}
		counts[at]--
		if s.failed == nil {
			s.failed = s.unbind(depth)
		}
		if s.failed != nil {
			return false
		}
	}
	if len(whys) == left && depth > len(s.most) {
		s.most, s.whys = s.order(), whys
	}
	s.dead[state] = true
	return false
}

func stateOf(counts []int) string {
	var words strings.Builder
	for _, count := range counts {
		words.WriteString(strconv.Itoa(count))
		words.WriteByte(' ')
	}
	return words.String()
}

// takes looks on which nodes each pod that is left out would be taken.
func (w *world) takes(asked *question, found *answer) error {
	for _, each := range asked.unplaced {
		found.Takes[each.name()] = []string{}
	}
	look := func(only *corev1.Node) error {
		all, err := w.shared.NodeInfos().List()
		if err != nil {
			return err
		}
		for _, each := range asked.unplaced {
			cycle := w.cycle(each)
			var taking []nodeInfo
			for _, node := range all {
				if (only == nil || node.Node().Name == only.Name) && cycle.refused(node) == nil {
					taking = append(taking, node)
					found.Takes[each.name()] = append(found.Takes[each.name()], node.Node().Name)
				}
			}
			if found.Scores != nil && only == nil && len(taking) > 0 {
				if err := cycle.keepScores(taking, found); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if len(asked.unplaced) == 0 {
		return nil
	}
	if err := look(nil); err != nil {
		return err
	}
	for _, node := range asked.empty {
		bindings, changes := len(w.bound), len(w.store.changes)
		w.store.put(node)
		w.cache.AddNode(klog.Logger{}, node)
		var pods []*corev1.Pod
		for _, pod := range asked.bound {
			if pod.Spec.NodeName == node.Name {
				pods = append(pods, pod)
				if err := w.cache.AddPod(klog.Logger{}, pod); err != nil {
					return err
				}
			}
		}
		if err := w.look(); err != nil {
			return err
		}
		for _, each := range asked.daemons {
			if each.node == node.Name {
				if _, err := w.put(each); err != nil {
					return err
				}
			}
		}
		if err := look(node); err != nil {
			return err
		}
		if err := w.unbind(bindings); err != nil {
			return err
		}
		for _, pod := range pods {
			if err := w.cache.RemovePod(klog.Logger{}, pod); err != nil {
				return err
			}
		}
		if err := w.cache.RemoveNode(klog.Logger{}, node); err != nil {
			return err
		}
		w.store.undo(changes)
		if err := w.look(); err != nil {
			return err
		}
	}
	return nil
}

// score keeps what the plug-ins think of all nodes that would take the pod now.
func (w *world) score(each *placement, found *answer) error {
	if found.Scores == nil {
		return nil
	}
	all, err := w.shared.NodeInfos().List()
	if err != nil {
		return err
	}
	cycle := w.cycle(each)
	var taking []nodeInfo
	for _, node := range all {
		if cycle.refused(node) == nil {
			taking = append(taking, node)
		}
	}
	if len(taking) == 0 {
		return nil
	}
	return cycle.keepScores(taking, found)
}

func (c *cycle) keepScores(nodes []nodeInfo, found *answer) error {
	scores, refused := c.scores(nodes)
	if refused != nil {
		return nil
	}
	of := map[string]map[string]int64{}
	for _, each := range scores {
		by := map[string]int64{"total": each.TotalScore}
		for _, plugin := range each.Scores {
			by[plugin.Name] = plugin.Score
		}
		of[each.Name] = by
	}
	found.Scores[c.of.name()] = of
	return nil
}

// rescored binds all pods once more in the order that was found, for their scores.
func (w *world) rescored(found *answer) error {
	if found.Scores == nil {
		return nil
	}
	order := w.order()
	if err := w.unbind(0); err != nil {
		return err
	}
	_, err := w.greedy(order, found)
	return err
}
