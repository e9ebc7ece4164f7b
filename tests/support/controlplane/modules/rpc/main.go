// The yardstick of bench/rpc.py: a server that answers NodeGroupForNode from a map, as a cloud provider written in Go
// would, and the client that asks any such server. Both speak mTLS. Messages are read and written field by field, which
// costs about what generated code does.
//
//	rpc serve DIRECTORY NODES GROUPS       prints its port
//	rpc load DIRECTORY ADDRESS NODES CLIENTS SECONDS   prints microseconds as JSON; SECONDS 0: every node once
//
// DIRECTORY has the files of `cagrpc certs`. Node n has the providerID "kwok://node-n" and is in group n modulo GROUPS.
package main

import (
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
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protowire"
)

const method = "/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/NodeGroupForNode"

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
func request(node int) []byte {
	name := fmt.Sprintf("node-%d", node)
	message := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), id(node))
	message = protowire.AppendString(protowire.AppendTag(message, 2, protowire.BytesType), name)
	for label := range 12 {
		entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), fmt.Sprintf("node.kubernetes.io/label-%d", label))
		entry = protowire.AppendString(protowire.AppendTag(entry, 2, protowire.BytesType), name)
		message = protowire.AppendBytes(protowire.AppendTag(message, 3, protowire.BytesType), entry)
	}
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), message)
}

func load(directory, address string, nodes, clients int, lasts time.Duration) {
	pair, pool := files(directory, "client")
	config := &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: pool}
	ask := make([]func(int) time.Duration, clients)
	for client := range clients {
		connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{})))
		check(err)
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
