// Command oracle says what kube-scheduler's own plug-ins make of a plan: which placements they refuse in every order, which
// pods get stuck in the orders of the scheduler's own choice, and which nodes would take what the plan left out.
//
// Each line of stdin is a question and each line of stdout its answer, both JSON; tests/oracle describes them. Nothing
// runs beside it: objects are in memory, informers are lists, and what the PV controller, a provisioner of volumes and
// the API server would do at a binding is done at once.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

func main() {
	log.SetFlags(0)
	var settings settings
	flag.BoolVar(&settings.scores, "scores", false, "answer the scores of each pod's nodes as well")
	flag.IntVar(&settings.orders, "orders", 8, "how many orders of the scheduler's own choice are tried")
	flag.IntVar(&settings.steps, "steps", 4000, "how many bindings are tried until a plan is undecided")
	flag.Int64Var(&settings.seed, "seed", 1, "of the orders, and of the choice between nodes of one score")
	flag.Func("feature-gates", "as of kube-scheduler", utilfeature.DefaultMutableFeatureGate.Set)
	flag.Parse()
	scheduler, err := newScheduler()
	if err != nil {
		log.Fatalf("building the scheduler's framework: %s", err)
	}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	answers := bufio.NewWriter(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 1 {
			if err := json.NewEncoder(answers).Encode(answered(scheduler, line, settings)); err != nil {
				log.Fatalf("writing an answer: %s", err)
			}
			if err := answers.Flush(); err != nil {
				log.Fatalf("writing an answer: %s", err)
			}
		}
		if err != nil {
			return
		}
	}
}

// answered is the answer to one line. A question that cannot be read, or on which a plug-in panics, is answered by its
// error alone.
func answered(scheduler *scheduler, line []byte, settings settings) (said any) {
	defer func() {
		if why := recover(); why != nil {
			said = map[string]string{"error": fmt.Sprint(why)}
		}
	}()
	found, err := read(line)
	if err == nil {
		var answer *answer
		if answer, err = scheduler.ask(found, settings); err == nil {
			return answer
		}
	}
	return map[string]string{"error": fmt.Sprint(err)}
}
