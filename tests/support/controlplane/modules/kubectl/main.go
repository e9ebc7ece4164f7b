// A kubelet's part in forwarding ports, with the code that container runtimes serve it with: whatever port of whatever pod the
// API server asks for leads to one address. What a kubelet checks before (who the API server is, whether it has the pod) is
// left out.
package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

type oneAddress string

func (address oneAddress) PortForward(_ context.Context, _ string, _ string, _ int32, stream io.ReadWriteCloser) error {
	connection, err := net.Dial("tcp", string(address))
	if err != nil {
		return err
	}
	defer connection.Close()
	go func() {
		_, _ = io.Copy(connection, stream)
		_ = connection.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, connection)
	return err
}

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: kubelet LISTEN_ADDRESS CERTIFICATE KEY ADDRESS")
	}
	target := oneAddress(os.Args[4])
	http.HandleFunc("/portForward/", func(response http.ResponseWriter, request *http.Request) {
		// /portForward/NAMESPACE/POD
		parts := strings.Split(strings.Trim(request.URL.Path, "/"), "/")
		options, err := portforward.NewV4Options(request)
		if err != nil || len(parts) != 3 {
			http.Error(response, "expected /portForward/NAMESPACE/POD", http.StatusBadRequest)
			return
		}
		pod := parts[2] + "_" + parts[1]
		portforward.ServePortForward(response, request, target, pod, "", options, time.Hour, 30*time.Second, portforward.SupportedProtocols)
	})
	log.Fatal(http.ListenAndServeTLS(os.Args[1], os.Args[2], os.Args[3], nil))
}
