//! What the public Rust client does against a broker: every kind of topic, and a broker that goes away in between.
//!
//! Called with the broker's URL. Says `stop` or `kill` when the broker shall end, and goes on when it is given a line.

use std::collections::HashSet;
use std::error::Error;
use std::time::Duration;

use danube_client::{DanubeClient, Producer, SubType};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

type Outcome<T> = Result<T, Box<dyn Error>>;
const MESSAGES: usize = 20;
const PATIENCE: Duration = Duration::from_secs(20);

async fn producer(client: &DanubeClient, topic: &str, reliable: bool, partitions: usize) -> Outcome<Producer> {
    let mut builder = client.new_producer().with_topic(topic).with_name("rust");
    if reliable {
        builder = builder.with_reliable_dispatch();
    }
    if partitions > 0 {
        builder = builder.with_partitions(partitions);
    }
    let mut made = builder.build()?;
    made.create().await?;
    Ok(made)
}

fn body(number: usize) -> Vec<u8> {
    number.to_string().into_bytes()
}

async fn row(client: &DanubeClient, reliable: bool, partitions: usize, kind: SubType, name: &str) -> Outcome<()> {
    let topic = format!("/default/rust-{reliable}-{partitions}-{name}");
    let sender = producer(client, &topic, reliable, partitions).await?;
    let mut consumer = client
        .new_consumer()
        .with_topic(topic.as_str())
        .with_consumer_name("c")
        .with_subscription("s")
        .with_subscription_type(kind)
        .build()?;
    consumer.subscribe().await?;
    let mut messages = consumer.receive().await?;
    for number in 0..MESSAGES {
        sender.send_with_key(body(number), None, format!("k{}", number % 3).as_str()).await?;
    }
    let mut seen = HashSet::new();
    while seen.len() < MESSAGES {
        let message = timeout(PATIENCE, messages.recv()).await?.ok_or("the stream ended")?;
        seen.insert(message.payload.to_vec());
        consumer.ack(&message).await?;
    }
    consumer.close().await;
    println!("passed {topic}");
    Ok(())
}

/// Says what should happen to the broker, and waits until it has.
async fn ask_for(what: &str) -> Outcome<()> {
    println!("{what}");
    BufReader::new(tokio::io::stdin()).read_line(&mut String::new()).await?;
    Ok(())
}

async fn survive(client: &DanubeClient) -> Outcome<()> {
    let topic = "/default/rust-survives";
    let sender = producer(client, topic, true, 0).await?;
    let mut consumer = client
        .new_consumer()
        .with_topic(topic)
        .with_consumer_name("c")
        .with_subscription("s")
        .with_subscription_type(SubType::Exclusive)
        .build()?;
    consumer.subscribe().await?;
    let mut messages = consumer.receive().await?;
    let mut seen = HashSet::new();
    for (round, what) in ["stop", "kill"].iter().enumerate() {
        for number in round * MESSAGES..(round + 1) * MESSAGES {
            sender.send(body(number), None).await?;
        }
        ask_for(what).await?;
        while seen.len() < (round + 1) * MESSAGES {
            match timeout(PATIENCE, messages.recv()).await? {
                Some(message) => {
                    seen.insert(message.payload.to_vec());
                    consumer.ack(&message).await?;
                }
                // A broker that is away for a moment ends the stream of this client for good; its program subscribes again.
                None => {
                    consumer.subscribe().await?;
                    messages = consumer.receive().await?;
                }
            }
        }
    }
    println!("passed {topic}");
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let url = std::env::args().nth(1).ok_or("the URL of a broker is missing")?;
    let client = DanubeClient::builder().service_url(url).build().await?;
    for reliable in [false, true] {
        for partitions in [0, 3] {
            row(&client, reliable, partitions, SubType::Exclusive, "exclusive").await?;
            row(&client, reliable, partitions, SubType::Shared, "shared").await?;
            row(&client, reliable, partitions, SubType::FailOver, "failover").await?;
            row(&client, reliable, partitions, SubType::KeyShared, "key-shared").await?;
        }
    }
    survive(&client).await?;
    println!("done");
    Ok(())
}
