// What the public Go client does against a broker: every kind of topic, and a broker that goes away in between.
//
// Called with the broker's URL. Says `stop` or `kill` when the broker shall end, and goes on when it is given a line.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"time"

	danube "github.com/danube-messaging/danube-go"
	"github.com/danube-messaging/danube-go/proto"
)

const messages = 20
const patience = 20 * time.Second

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func producer(client *danube.DanubeClient, topic string, reliable bool, partitioned bool) *danube.Producer {
	builder := client.NewProducer().WithTopic(topic).WithName("go")
	if reliable {
		builder = builder.WithDispatchStrategy(danube.NewReliableDispatchStrategy())
	}
	if partitioned {
		builder = builder.WithPartitions(3)
	}
	made, err := builder.Build()
	must(err)
	must(made.Create(context.Background()))
	return made
}

func consumer(client *danube.DanubeClient, topic string, kind danube.SubType) *danube.Consumer {
	made, err := client.NewConsumer().WithTopic(topic).WithConsumerName("c").WithSubscription("s").
		WithSubscriptionType(kind).Build()
	must(err)
	must(made.Subscribe(context.Background()))
	return made
}

func send(sender *danube.Producer, first int) {
	for number := first; number < first+messages; number++ {
		body := []byte(fmt.Sprint(number))
		_, err := sender.SendWithKey(context.Background(), body, nil, fmt.Sprintf("k%d", number%3))
		must(err)
	}
}

// take reads until so many different messages came in all, each acknowledged.
func take(receiver *danube.Consumer, stream <-chan *proto.StreamMessage, seen map[string]bool, count int) {
	for len(seen) < count {
		select {
		case message, open := <-stream:
			if !open {
				log.Fatal("the stream ended")
			}
			seen[string(message.GetPayload())] = true
			_, err := receiver.Ack(context.Background(), message)
			must(err)
		case <-time.After(patience):
			log.Fatalf("%d of %d messages came", len(seen), count)
		}
	}
}

func row(client *danube.DanubeClient, reliable bool, partitioned bool, kind danube.SubType, name string) {
	topic := fmt.Sprintf("/default/go-%t-%t-%s", reliable, partitioned, name)
	sender := producer(client, topic, reliable, partitioned)
	receiver := consumer(client, topic, kind)
	stream, err := receiver.Receive(context.Background())
	must(err)
	send(sender, 0)
	take(receiver, stream, map[string]bool{}, messages)
	receiver.Close()
	fmt.Println("passed", topic)
}

func survive(client *danube.DanubeClient) {
	topic := "/default/go-survives"
	sender := producer(client, topic, true, false)
	receiver := consumer(client, topic, danube.Exclusive)
	stream, err := receiver.Receive(context.Background())
	must(err)
	input, seen := bufio.NewReader(os.Stdin), map[string]bool{}
	for round, what := range []string{"stop", "kill"} {
		send(sender, round*messages)
		fmt.Println(what)
		_, err := input.ReadString('\n')
		must(err)
		take(receiver, stream, seen, (round+1)*messages)
	}
	fmt.Println("passed", topic)
}

func main() {
	client, err := danube.NewClient().ServiceURL(os.Args[1]).Build()
	must(err)
	for _, reliable := range []bool{false, true} {
		for _, partitioned := range []bool{false, true} {
			row(client, reliable, partitioned, danube.Exclusive, "exclusive")
			row(client, reliable, partitioned, danube.Shared, "shared")
			row(client, reliable, partitioned, danube.KeyShared, "key-shared")
		}
	}
	survive(client)
	fmt.Println("done")
}
