// The program of a test's pods.
//
//	pod pause   waits to be ended: holds a pod's namespaces
//	pod serve   answers on port 8080, HTTP and UDP
//
// Asked for /who, and by any datagram, it says who answers and from which address it was asked: "web-1 10.244.0.7".
// /ask?tcp=HOST:PORT and /ask?udp=HOST:PORT ask somebody else from inside the pod and pass on what they say, so that a
// test sees what this pod's sockets and its resolver see.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const (
	at = ":8080"
	// A client of the harness waits longer than this, and sees the error of the pod.
	patience = 3 * time.Second
)

func main() {
	switch mode := argument(); mode {
	case "pause":
	case "serve":
		go serveDatagrams()
		go serveHTTP()
	default:
		log.Fatalf("pod: %q is not pause or serve", mode)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}

func argument() string {
	if len(os.Args) != 2 {
		return ""
	}
	return os.Args[1]
}

// Its own name and the client's address, without the port.
func who(client string) string {
	name, err := os.Hostname()
	if err != nil {
		log.Fatal(err)
	}
	host, _, err := net.SplitHostPort(client)
	if err != nil {
		log.Fatal(err)
	}
	return fmt.Sprintf("%s %s", name, host)
}

func serveDatagrams() {
	socket, err := net.ListenPacket("udp", at)
	if err != nil {
		log.Fatal(err)
	}
	buffer := make([]byte, 1500)
	for {
		_, client, err := socket.ReadFrom(buffer)
		if err != nil {
			log.Fatal(err)
		}
		if _, err := socket.WriteTo([]byte(who(client.String())), client); err != nil {
			log.Print(err)
		}
	}
}

func serveHTTP() {
	http.HandleFunc("/who", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, who(r.RemoteAddr))
	})
	http.HandleFunc("/ask", func(w http.ResponseWriter, r *http.Request) {
		answer, err := ask(r.FormValue("tcp"), r.FormValue("udp"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		fmt.Fprint(w, answer)
	})
	log.Fatal(http.ListenAndServe(at, nil))
}

// A new connection each time: each is a decision of its own.
func ask(tcp, udp string) (string, error) {
	if tcp != "" {
		client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
		answer, err := client.Get("http://" + tcp + "/who")
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		return string(text), err
	}
	socket, err := net.DialTimeout("udp", udp, patience)
	if err != nil {
		return "", err
	}
	defer socket.Close()
	if err := socket.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := socket.Write([]byte("who")); err != nil {
		return "", err
	}
	buffer := make([]byte, 1500)
	n, err := socket.Read(buffer)
	return string(buffer[:n]), err
}
