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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const messages = 20
const patience = 20 * time.Second

// Of the client itself, with half a second between them: unless told so, it gives up after about four seconds.
const retries, pause = 60, 500

var always = context.Background()
var kinds = map[string]danube.SubType{
	"exclusive":  danube.Exclusive,
	"shared":     danube.Shared,
	"failover":   danube.FailOver,
	"key-shared": danube.KeyShared,
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func producer(client *danube.DanubeClient, topic string, reliable bool, partitioned bool) *danube.Producer {
	options := danube.ProducerOptions{MaxRetries: retries, MaxBackoffMs: pause}
	builder := client.NewProducer().WithTopic(topic).WithName("go").WithOptions(options)
	if reliable {
		builder = builder.WithDispatchStrategy(danube.NewReliableDispatchStrategy())
	}
	if partitioned {
		builder = builder.WithPartitions(3)
	}
	made, err := builder.Build()
	must(err)
	must(made.Create(always))
	return made
}

// consumer is a subscribed one with the channel of what it gets, and what came.
type consumer struct {
	topic  string
	client *danube.Consumer
	stream chan *proto.StreamMessage
	seen   map[string]bool
}

func subscribe(client *danube.DanubeClient, topic string, kind danube.SubType) *consumer {
	options := danube.ConsumerOptions{MaxRetries: retries, MaxBackoffMs: pause}
	made, err := client.NewConsumer().WithTopic(topic).WithConsumerName("c").WithSubscription("s").
		WithSubscriptionType(kind).WithOptions(options).Build()
	must(err)
	must(made.Subscribe(always))
	stream, err := made.Receive(always)
	must(err)
	return &consumer{topic, made, stream, map[string]bool{}}
}

func (c *consumer) next() *proto.StreamMessage {
	select {
	case message, open := <-c.stream:
		if !open {
			log.Fatalf("the stream of %s ended after %d messages", c.topic, len(c.seen))
		}
		return message
	case <-time.After(patience):
		log.Fatalf("%d messages of %s came", len(c.seen), c.topic)
	}
	return nil
}

// ack tries until it is answered. The client tries everything again while the broker is away, but not this.
func (c *consumer) ack(message *proto.StreamMessage) {
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		_, err := c.client.Ack(always, message)
		if err == nil {
			return
		}
		if status.Code(err) != codes.Unavailable || time.Now().After(deadline) {
			log.Fatal(err)
		}
	}
}

// take reads until so many different messages came in all, each acknowledged.
func (c *consumer) take(count int) {
	for len(c.seen) < count {
		message := c.next()
		c.ack(message)
		c.seen[string(message.GetPayload())] = true
	}
}

func send(sender *danube.Producer, first int) {
	for number := first; number < first+messages; number++ {
		body := []byte(fmt.Sprint(number))
		_, err := sender.SendWithKey(always, body, nil, fmt.Sprintf("k%d", number%3))
		must(err)
	}
}

func row(client *danube.DanubeClient, reliable bool, partitioned bool, name string) {
	topic := fmt.Sprintf("/default/go-%t-%t-%s", reliable, partitioned, name)
	sender := producer(client, topic, reliable, partitioned)
	receiver := subscribe(client, topic, kinds[name])
	send(sender, 0)
	receiver.take(messages)
	receiver.client.Close()
	fmt.Println("passed", topic)
}

func nack(client *danube.DanubeClient) {
	topic := "/default/go-nack"
	sender := producer(client, topic, true, false)
	receiver := subscribe(client, topic, danube.Shared)
	attributes := map[string]string{"a": "1"}
	_, err := sender.Send(always, []byte("again"), attributes)
	must(err)
	delay, reason := uint64(0), "once more"
	first := receiver.next()
	_, err = receiver.client.Nack(always, first, &delay, &reason)
	must(err)
	second := receiver.next()
	if second.GetMsgId().GetTopicOffset() != first.GetMsgId().GetTopicOffset() || second.GetAttributes()["a"] != "1" {
		log.Fatal("another message came after the nack")
	}
	receiver.ack(second)
	receiver.client.Close()
	fmt.Println("passed", topic)
}

// survive has messages waiting whenever the broker ends, of every kind of subscription.
func survive(client *danube.DanubeClient) {
	senders, receivers := map[string]*danube.Producer{}, map[string]*consumer{}
	for name, kind := range kinds {
		topic := "/default/go-survives-" + name
		senders[name] = producer(client, topic, true, false)
		receivers[name] = subscribe(client, topic, kind)
	}
	input := bufio.NewReader(os.Stdin)
	for round, what := range []string{"stop", "kill"} {
		for _, sender := range senders {
			send(sender, round*messages)
		}
		fmt.Println(what)
		_, err := input.ReadString('\n')
		must(err)
		for name, receiver := range receivers {
			receiver.take((round + 1) * messages)
			fmt.Println("passed", what, name)
		}
	}
	for name, sender := range senders {
		send(sender, 2*messages)
		receivers[name].take(3 * messages)
	}
}

func main() {
	client, err := danube.NewClient().ServiceURL(os.Args[1]).Build()
	must(err)
	for _, reliable := range []bool{false, true} {
		for _, partitioned := range []bool{false, true} {
			for name := range kinds {
				row(client, reliable, partitioned, name)
			}
		}
	}
	nack(client)
	survive(client)
	fmt.Println("done")
}
