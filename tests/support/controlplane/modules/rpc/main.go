// The yardstick of bench/rpc.py: a server that answers NodeGroupForNode from a map, as a cloud provider written in Go
// would, and the client that asks any such server. Both speak mTLS. Messages are read and written field by field, which
// costs about what generated code does.
//
//	rpc serve DIRECTORY NODES GROUPS       prints its port
//	rpc load DIRECTORY ADDRESS NODES CLIENTS SECONDS   prints microseconds as JSON; SECONDS 0: every node once
//	rpc loop DIRECTORY ADDRESS FILE        asks what the autoscaler asks in a loop at each line that it reads, and prints
//	                                       seconds as JSON
//
// DIRECTORY has the files of `cagrpc certs`. Node n has the providerID "kwok://node-n" and is in group n modulo GROUPS.
// FILE, of bench/scale_live.py, has the providerIDs of all nodes, one a line.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
)

const service = "/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/"
const method = service + "NodeGroupForNode"

// raw passes messages as they are.
type raw struct{}

func (raw) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

// Unmarshal copies: gRPC uses the buffer again.
func (raw) Unmarshal(data []byte, v any) error { *v.(*[]byte) = slices.Clone(data); return nil }
func (raw) Name() string                       { return "proto" }

func main() {
	directory := os.Args[2]
	switch os.Args[1] {
	case "serve":
		serve(directory, number(3), number(4))
	case "load":
		load(directory, os.Args[3], number(4), number(5), time.Duration(number(6))*time.Second)
	case "loop":
		loop(directory, os.Args[3], os.Args[4])
	}
}

func number(argument int) int {
	found, err := strconv.Atoi(os.Args[argument])
	check(err)
	return found
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func files(directory, name string) (tls.Certificate, *x509.CertPool) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(directory, name+".crt"), filepath.Join(directory, name+".key"))
	check(err)
	authority, err := os.ReadFile(filepath.Join(directory, "ca.crt"))
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	return pair, pool
}

func id(node int) string { return fmt.Sprintf("kwok://node-%d", node) }

type group struct{ id, debug string }

func serve(directory string, nodes, groups int) {
	groupOf := make(map[string]*group, nodes)
	all := make([]*group, groups)
	for each := range all {
		all[each] = &group{fmt.Sprintf("group-%d", each), "default weight 1 m7i.large zone-a on-demand"}
	}
	for node := range nodes {
		groupOf[id(node)] = all[node%groups]
	}
	answer := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var request []byte
		if err := decode(&request); err != nil {
			return nil, err
		}
		providerID, err := providerIDOf(request)
		if err != nil {
			return nil, err
		}
		var message []byte
		if found := groupOf[providerID]; found != nil {
			message = protowire.AppendString(protowire.AppendTag(message, 1, protowire.BytesType), found.id)
			message = protowire.AppendVarint(protowire.AppendTag(message, 3, protowire.VarintType), 1000)
			message = protowire.AppendString(protowire.AppendTag(message, 4, protowire.BytesType), found.debug)
		}
		response := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), message)
		return &response, nil
	}
	pair, pool := files(directory, "server")
	config := &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(config)), grpc.ForceServerCodec(raw{}))
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider",
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "NodeGroupForNode", Handler: answer}},
	}, struct{}{})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	check(server.Serve(listener))
}

// providerIDOf reads a whole request, labels and annotations too.
func providerIDOf(request []byte) (string, error) {
	var providerID string
	err := fields(request, func(_ protowire.Number, node []byte) error {
		labels := map[string]string{}
		return fields(node, func(number protowire.Number, value []byte) error {
			if number == 1 {
				providerID = string(value)
			}
			if number != 3 {
				return nil
			}
			var pair [2]string
			err := fields(value, func(at protowire.Number, text []byte) error {
				pair[at-1] = string(text)
				return nil
			})
			labels[pair[0]] = pair[1]
			return err
		})
	})
	return providerID, err
}

func fields(message []byte, each func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, _, length := protowire.ConsumeTag(message)
		if length < 0 {
			return protowire.ParseError(length)
		}
		value, size := protowire.ConsumeBytes(message[length:])
		if size < 0 {
			return protowire.ParseError(size)
		}
		if err := each(number, value); err != nil {
			return err
		}
		message = message[length+size:]
	}
	return nil
}

// request is that of a node with a dozen labels, as CA sends it.
func request(node int) []byte { return requestOf(id(node), fmt.Sprintf("node-%d", node)) }

func requestOf(providerID, name string) []byte {
	message := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), providerID)
	message = protowire.AppendString(protowire.AppendTag(message, 2, protowire.BytesType), name)
	for label := range 12 {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Sprintf("node.kubernetes.io/label-%d", label))
		entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), name)
		message = protowire.AppendBytes(protowire.AppendTag(message, 3, protowire.BytesType), entry)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), message)
}

func connect(directory, address string) *grpc.ClientConn {
	pair, pool := files(directory, "client")
	config := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(64<<20)))
	check(err)
	return connection
}

// loop asks what CA asks in each of its loops, one call after the other: all groups with their sizes and instances, the
// group of each node, and twice each node's options, which CA never caches.
func loop(directory, address, file string) {
	connection := connect(directory, address)
	ask := func(name string, message []byte) []byte {
		var response []byte
		err := connection.Invoke(context.Background(), service+name, &message, &response)
		if status.Code(err) != codes.Unimplemented { // that is CA's word for its own defaults
			check(err)
		}
		return response
	}
	byID := func(id string) []byte {
		return protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), id)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		nodes, err := os.ReadFile(file)
		check(err)
		took, last := map[string]float64{}, time.Now()
		lap := func(name string) { took[name], last = time.Since(last).Seconds(), time.Now() }
		begun := last
		ask("Refresh", nil)
		lap("refresh")
		var groups []string
		check(fields(ask("NodeGroups", nil), func(_ protowire.Number, group []byte) error {
			return idOf(group, func(id string) { groups = append(groups, id) })
		}))
		for _, group := range groups {
			ask("NodeGroupTargetSize", byID(group))
			ask("NodeGroupNodes", byID(group))
		}
		lap("groups")
		groupOf := map[string]string{}
		for providerID := range strings.FieldsSeq(string(nodes)) {
			check(fields(ask("NodeGroupForNode", requestOf(providerID, filepath.Base(providerID))), func(_ protowire.Number, group []byte) error {
				return idOf(group, func(id string) { groupOf[providerID] = id })
			}))
		}
		lap("nodes")
		defaults := protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), nil)
		for range 2 {
			for _, group := range groupOf {
				ask("NodeGroupGetOptions", append(byID(group), defaults...))
			}
		}
		lap("options")
		took["seconds"], took["calls"] = time.Since(begun).Seconds(), float64(2+2*len(groups)+3*len(groupOf))
		check(json.NewEncoder(os.Stdout).Encode(took))
	}
}

// idOf passes on the first field of a node group, its id.
func idOf(group []byte, found func(string)) error {
	number, _, length := protowire.ConsumeTag(group)
	if length < 0 || number != 1 {
		return nil // the group of a node of others
	}
	id, size := protowire.ConsumeString(group[length:])
	if size < 0 {
		return protowire.ParseError(size)
	}
	found(id)
	return nil
}

func load(directory, address string, nodes, clients int, lasts time.Duration) {
	ask := make([]func(int) time.Duration, clients)
	for client := range clients {
		connection := connect(directory, address)
		ask[client] = func(node int) time.Duration {
			message, response := request(node), []byte(nil)
			started := time.Now()
			check(connection.Invoke(context.Background(), method, &message, &response))
			took := time.Since(started)
			if len(response) < 8 {
				check(fmt.Errorf("node %d is in no group", node))
			}
			return took
		}
		for node := range 100 {
			ask[client](node) // connects, and makes what is made only once
		}
	}
	var group sync.WaitGroup
	took := make([][]time.Duration, clients)
	begun := time.Now()
	for client := range clients {
		group.Go(func() {
			for node := client; ; node += clients {
				if lasts == 0 && node >= nodes || lasts > 0 && time.Since(begun) > lasts {
					return
				}
				took[client] = append(took[client], ask[client](node%nodes))
			}
		})
	}
	group.Wait()
	elapsed := time.Since(begun)
	all := slices.Concat(took...)
	slices.Sort(all)
	micros := func(share float64) float64 {
		return float64(all[int(share*float64(len(all)-1))].Nanoseconds()) / 1e3
	}
	check(json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"calls": float64(len(all)), "seconds": elapsed.Seconds(),
		"p50": micros(.5), "p99": micros(.99), "p999": micros(.999), "most": micros(1),
	}))
}
